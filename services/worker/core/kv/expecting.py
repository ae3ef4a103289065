"""Sessions whose turns were announced, until what they will run on is asked for.

An advisory may come hours before its turn. What the turn needs is prefetched a little before it is
expected, and until then the advisory holds nothing, neither here nor in the arena. Source:
SYMPHONY, section 3.3, whose advisories come seconds ahead; what to do with earlier ones is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import ceil

from services.worker.core.effects import Effect, Prefetched, StageSession
from services.worker.core.engine_limits import Estimates
from shared.blocks import BlockKey
from shared.hints import HINT_HOLD_NS, SHARE_OF_ONE, HintShares
from shared.ids import HostId, SessionId, TenantId, TurnId
from shared.owners import NO_OWNER, OwnerKey, owner_key
from shared.wire.messages import AdapterRef
from shared.wire.urgency import is_urgent

LEAD_FACTOR = 2  # begun so many transfer times ahead: others may be on the same way
ASK_AHEAD_NS = 500_000_000  # and so much for the questions
WAITING_MAX = 4096
UNKNOWN_MAX = 1024  # and so many of which no history is known: there may be nothing to prefetch
STALE_MIN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """An announced turn.

    Attributes:
        arrives_at_ns: when it is expected; 0: at any time.
        num_tokens: of the session's last prompt; 0: not known.
        adapter: that it will run on.
        num_image_blocks: of the adapter's image.
        kv_at: how many leading blocks of the session are on which hosts, as far as known.
        keys: of the blocks that it needs; empty: those of the session's record.
        trace: of its advisory; empty: it is not traced.
        running: the turn, if it runs elsewhere and may move here.
        maker: the session that made the blocks, if it is not the one that is named.
        asked_at_ns: when the kvstore was asked for it.
    """

    tenant: TenantId
    session_id: SessionId
    priority: int
    expires_at_ns: int
    arrives_at_ns: int = 0
    num_tokens: int = 0
    adapter: AdapterRef | None = None
    num_image_blocks: int = 0
    kv_at: Mapping[HostId, int] = field(default_factory=dict)
    keys: tuple[BlockKey, ...] = ()
    trace: str = ""
    running: TurnId | None = None
    maker: OwnerKey = NO_OWNER
    asked_at_ns: int = 0
    owner: OwnerKey = field(init=False)  # asked for with every turn that comes

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", owner_key(self.tenant, self.session_id))

    @property
    def owners(self) -> tuple[OwnerKey, OwnerKey]:
        """Sessions without which nothing is expected: that it is named after, and the maker."""
        return self.owner, self.owner if self.maker == NO_OWNER else self.maker

    @property
    def is_known(self) -> bool:
        """Whether anything is known that could be prefetched of its session's history."""
        return bool(self.num_tokens or self.kv_at or self.keys)


@dataclass(slots=True)
class Expecting:
    """At most one announced turn a session."""

    _waiting: dict[OwnerKey, tuple[int, Expected]] = field(default_factory=dict)  # and its number
    _due: list[tuple[int, int, OwnerKey]] = field(default_factory=list)  # a heap; some are stale
    _asked: dict[int, Expected] = field(default_factory=dict)  # by `StageSession.number`
    _last_number: int = 0
    _known: HintShares = field(default_factory=lambda: _shares(WAITING_MAX))
    _unknown: HintShares = field(default_factory=lambda: _shares(UNKNOWN_MAX))

    @property
    def next_at_ns(self) -> int | None:
        """When `take_due` has something, or finds that it has not."""
        return self._due[0][0] if self._due else None

    def wait(self, expected: Expected, start_at_ns: int) -> None:
        """Prefetch it then, in place of what was known of the session. Where too many wait, or too
        many of its tenant, it is loaded when its turn is here."""
        self.drop(expected.owner)
        shares = self._shares_of(expected)
        if not shares.room(expected.tenant, expected.owner):
            return
        shares.take(expected.tenant, expected.owner, 1)
        self._last_number += 1
        self._waiting[expected.owner] = self._last_number, expected
        heappush(self._due, (start_at_ns, self._last_number, expected.owner))
        if len(self._due) > 2 * len(self._waiting) + STALE_MIN:
            numbers = {number for number, _ in self._waiting.values()}
            self._due = [due for due in self._due if due[1] in numbers]
            heapify(self._due)

    def take_due(self, now_ns: int) -> list[Expected]:
        """Turns to prefetch for, now."""
        taken = []
        while self._due and self._due[0][0] <= now_ns:
            _, number, owner = heappop(self._due)
            if self._waiting.get(owner, (0, None))[0] == number:
                taken.append(self._take(owner))
        return taken

    def ask(self, expected: Expected) -> StageSession:
        """The question for a session's blocks."""
        self._last_number += 1
        self._asked[self._last_number] = expected
        return StageSession(
            self._last_number,
            expected.tenant,
            expected.session_id,
            expected.priority,
            expected.kv_at,
            expected.keys,
            expected.trace,
        )

    def answered(self, number: int) -> Expected | None:
        """What was asked for; None: it is not expected any more."""
        return self._asked.pop(number, None)

    def drop(self, owner: OwnerKey) -> None:
        """Its turn is here, or not coming."""
        if owner in self._waiting:
            self._take(owner)
        for number in [at for at, each in self._asked.items() if owner in each.owners]:
            del self._asked[number]

    def _take(self, owner: OwnerKey) -> Expected:
        _, expected = self._waiting.pop(owner)
        self._shares_of(expected).give(expected.tenant, owner, 1)
        return expected

    def _shares_of(self, expected: Expected) -> HintShares:
        return self._known if expected.is_known else self._unknown


def _shares(num_max: int) -> HintShares:
    return HintShares(num_max, ceil(SHARE_OF_ONE * num_max))


def start_at_ns(expected: Expected, num_bytes: int, estimates: Estimates, now_ns: int) -> int:
    """When to ask for what an announced turn needs: early enough that its `num_bytes` are there in
    time by the slowest path that they may take; for an urgent turn at once, if it comes before the
    pages would be released again. 0: now."""
    at_once_ns = expected.arrives_at_ns - HINT_HOLD_NS
    if not expected.arrives_at_ns or (is_urgent(expected.priority) and at_once_ns <= now_ns):
        return 0
    slowest_ns = estimates.slowest_ns(num_bytes, expected.kv_at)
    return expected.arrives_at_ns - (LEAD_FACTOR * slowest_ns + ASK_AHEAD_NS)


def asked_at(expected: Expected, now_ns: int) -> Expected:
    """An announced turn that is asked for now: what it needs is held until it expires, and not for
    long after the turn should have come."""
    held_until_ns = max(expected.arrives_at_ns, now_ns) + HINT_HOLD_NS
    expires_at_ns = min(expected.expires_at_ns, held_until_ns)
    return replace(expected, expires_at_ns=expires_at_ns, asked_at_ns=now_ns)


def prefetched(
    expected: Expected, num_staged: int, num_here: int, adapter_hash: str = ""
) -> list[Effect]:
    """The outcome of an announced turn, if anybody wants to know it: see `Prefetched`."""
    trace, asked_at_ns, running = expected.trace, expected.asked_at_ns, expected.running
    if not trace and running is None:
        return []
    return [Prefetched(trace, asked_at_ns, num_staged, num_here, adapter_hash, running)]
