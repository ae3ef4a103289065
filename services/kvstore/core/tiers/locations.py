"""Where sessions' KV is, as this host reports it to Redis: what to send next, and whether what was
sent is still there.

Only sessions that changed are sent. Redis keeps a digest of all that this host has sent, and takes
no more where that is another one (it was wiped, or came back with an old snapshot): then everything
sent before is made void by a new *life* and sent again, a part at a time, without anything being
read. The digest can be computed from the disk, so a kvstore that restarts goes on where its last
life ended, unless some blocks were in memory alone: then all is sent again.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from shared.locations import HostClaim
from shared.owners import OwnerKey

SESSIONS_MAX = 128  # of one update: it takes little time, here and in Redis
COUNTED_MAX = 2048  # sessions and their blocks looked at for one update, and those of one more
EXACT_MAX = 2048  # blocks of a session; of a larger one, lost blocks are reported a little later
INEXACT = 16  # when that is one part of so many
_MASK = (1 << 64) - 1
_COUNT = 0  # of a changed session: how many blocks it has must be counted


@dataclass(frozen=True, slots=True)
class LocationUpdate:
    """What Redis is sent in one step, if it has what was sent before.

    Attributes:
        sessions: leading blocks here, by session; 0: none any more.
        claim: what is true of all that was sent, then.
        before: what Redis has of this host if it has lost nothing; None: that does not matter.
        expiry_ns: how long one of the sessions outlives its last use, at most, if one has an expiry
            of its own.
    """

    sessions: dict[OwnerKey, int]
    claim: HostClaim
    before: HostClaim | None
    expiry_ns: int = 0


class Counted(Protocol):
    """A tier that counts how much of each session it has.

    Attributes:
        on_change: called with every session of which something came, went or was used, and how many
            blocks lead its sequence now: at least so many; 0: they are to be counted.
    """

    on_change: Callable[[OwnerKey, int], None]

    @property
    def owners(self) -> list[OwnerKey]: ...

    def num_owned(self, owner: OwnerKey) -> int: ...

    def expiry_ns_of(self, owner: OwnerKey) -> int: ...

    def count_leading(self, owner: OwnerKey) -> int: ...

    def count_all_leading(self) -> dict[OwnerKey, int]: ...


class Locations:
    """How many leading blocks of each session are in a tier of this host, and what Redis has.

    The shell has Redis checked while `is_in_doubt`, and now and then; then it sends what `take`
    gives while it `has_news`, and says what became of each.
    """

    def __init__(self, tier: Counted) -> None:
        self._tier = tier
        tier.on_change = self._on_change
        self._life: str | None = None  # none yet, or none that is valid
        self._said: dict[OwnerKey, int] = {}
        self._digest = 0
        self._is_claimed = False
        self._changed: dict[OwnerKey, int] = {}  # to: at least so many blocks
        self._resend: list[OwnerKey] = []  # all sessions, to be sent again
        self._num_removed: Counter[OwnerKey] = Counter()  # blocks since they were counted, of large
        self._sending: LocationUpdate | None = None
        self._unsettled: LocationUpdate | None = None  # sent, and may not have arrived
        self.is_in_doubt = True

    @property
    def has_news(self) -> bool:
        """Whether there is something to send."""
        return bool(self._changed or self._resend or not self._is_claimed)

    @property
    def said(self) -> HostClaim | None:
        """What Redis has of this host, as far as known; None: nothing that is valid."""
        return None if self._life is None else self._claim(self._life)

    def on_found(self) -> None:
        """The tier was read: an earlier life may have sent all that."""
        self._said = self._tier.count_all_leading()
        self._digest = sum(_hash(owner, num) for owner, num in self._said.items()) & _MASK
        self._changed.clear()

    def on_lost(self) -> None:
        """The disk was reset: what was sent of it is void. What memory keeps is sent again, also if
        Redis turns out to have no session of this life, so that nothing shows what is missing.
        """
        self._life = None
        self._forget_said()
        self._resend = self._tier.owners
        self._sending = self._unsettled = None
        self.is_in_doubt = True

    def on_checked(self, claim: HostClaim | None, life: str) -> None:
        """Redis has this of the host, or nothing.

        Args:
            life: a word that was never used, in case that it is needed.
        """
        self.is_in_doubt = False
        unsettled, self._unsettled = self._unsettled, None
        if claim is not None and self._life in (None, claim.life):
            if unsettled is not None and claim == unsettled.claim:
                self._take_for_said(unsettled)
            elif unsettled is not None and claim == unsettled.before:
                self._unsettled = unsettled  # it may come yet
            if claim == self._claim(claim.life):
                self._life, self._is_claimed = claim.life, True
                return
        self._life = life
        self._forget_said()
        self._resend = self._tier.owners

    def take(self) -> LocationUpdate | None:
        """What to send next; None: nothing, or nothing of those that were looked at so far."""
        assert self._sending is None, "one update at a time"
        if self._life is None or self.is_in_doubt:
            return None
        sessions: dict[OwnerKey, int] = {}
        digest, num_sessions, num_counted = self._digest, len(self._said), 0
        while len(sessions) < SESSIONS_MAX and num_counted < COUNTED_MAX:
            num_counted += 1
            if self._changed:
                owner, least = self._changed.popitem()
            elif self._resend:
                owner, least = self._resend.pop(), _COUNT
                if owner in self._said or owner in sessions:
                    continue
            else:
                break
            said = self._said.get(owner, 0)
            if least == _COUNT or not said:
                num_counted += self._tier.num_owned(owner)
                num_blocks = self._tier.count_leading(owner)
            else:
                num_blocks = max(said, least)
            if num_blocks or said:
                sessions[owner] = num_blocks
                digest += _hash(owner, num_blocks) - _hash(owner, said)
                num_sessions += (num_blocks > 0) - (said > 0)
        if not sessions and self._is_claimed:
            return None
        before = self._claim(self._life) if self._is_claimed else None
        claim = HostClaim(self._life, digest & _MASK, num_sessions)
        expiry_ns = max(map(self._tier.expiry_ns_of, sessions), default=0)
        self._sending = LocationUpdate(sessions, claim, before, expiry_ns)
        return self._sending

    def on_sent(self) -> None:
        """Redis has what was taken last."""
        if self._sending is not None:  # else the disk was lost meanwhile
            self._take_for_said(self._sending)
            self._sending, self._is_claimed = None, True

    def on_failed(self) -> None:
        """Redis did not take what was taken last, or may not have: it has to be checked."""
        self.is_in_doubt = True
        if self._sending is not None:
            self._changed |= dict.fromkeys(self._sending.sessions, _COUNT)
            self._sending, self._unsettled = None, self._sending

    def _on_change(self, owner: OwnerKey, least: int) -> None:
        num_owned = self._tier.num_owned(owner)
        if least == _COUNT and num_owned > EXACT_MAX:
            self._num_removed[owner] += 1
            if self._num_removed[owner] * INEXACT < num_owned:
                return  # counting so many for each that goes would hold up the loop
            del self._num_removed[owner]
        if least == _COUNT and not num_owned and not self._may_be_said(owner):
            self._changed.pop(owner, None)  # came and went without being sent
            return
        before = self._changed.get(owner, least)
        self._changed[owner] = _COUNT if _COUNT in (before, least) else max(before, least)

    def _may_be_said(self, owner: OwnerKey) -> bool:
        return owner in self._said or any(
            update is not None and owner in update.sessions
            for update in (self._sending, self._unsettled)
        )

    def _take_for_said(self, update: LocationUpdate) -> None:
        for owner, num_blocks in update.sessions.items():
            if num_blocks:
                self._said[owner] = num_blocks
            else:
                self._said.pop(owner, None)
        self._digest = update.claim.digest

    def _forget_said(self) -> None:
        self._said, self._digest, self._is_claimed = {}, 0, False
        self._changed, self._resend = {}, []
        self._num_removed.clear()

    def _claim(self, life: str) -> HostClaim:
        return HostClaim(life, self._digest, len(self._said))


def _hash(owner: OwnerKey, num_blocks: int) -> int:
    """Of one session's location; of none 0."""
    if not num_blocks:
        return 0
    data = owner + num_blocks.to_bytes(4, "little")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
