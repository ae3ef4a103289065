"""Who leads: a lease in a store that can compare and set, held by beats, taken over in silence.

No clocks are compared between hosts. Whoever holds the lease writes it again every beat. A spare
takes it when it has learned of no new revision for `ttl_ns` of its own clock, by a write that the
store takes only if the revision is still the one that the spare knows. The holder believes in its
lease for `patience_ns`, less than `ttl_ns`, from before the sending of its last write that the
store took; a spare can only have learned of that write later. So a holder stops before a spare can
begin. What it had under way when it stopped is told apart by the fence.

The ttl is long, so that no busy or paused machine loses its leader by it. A leader that dies is
found out sooner, because the bus knows that its connection is gone (see `holder_watch`); so a
holder that loses its connection stops at once, and looks into the store before it goes on. Nor does
the bus know of a holder that has not heard yet that it is one: who hears of it late looks as well.

Word of a write may be lost, late or doubled: it only moves a spare's patience. The write decides.

Source: deferred batch scheduling, section 6 (hot spares that exchange heartbeats with the primary).
"""

from enum import Enum, auto

from shared.effects import WakeAt
from shared.lease.core.effects import (
    NOBODY,
    Announce,
    AskHolder,
    Lead,
    LeaseEffect,
    Lost,
    ReadLease,
    Released,
    Resume,
    Stored,
    Suspend,
    WriteLease,
)
from shared.lease.core.holder_watch import HolderWatch
from shared.lease.core.times import LeaseTimes
from shared.messages import LeaderLease


class _Phase(Enum):
    SPARE = auto()
    HOLDER = auto()
    LOST = auto()
    RELEASED = auto()


class LeaseCore:
    """One instance's part in the lease. Begin with `on_wake`.

    At most one `ReadLease` or `WriteLease` is under way at a time.

    Args:
        instance: a name that no other process has or had.
        wall_offset_ms: wall clock minus the clock of `now_ns`, ms. Where the store holds no lease,
            a term's fence begins at the wall clock: higher than those that a lost store held.
    """

    def __init__(self, *, instance: str, times: LeaseTimes, wall_offset_ms: int) -> None:
        assert instance != NOBODY
        self._instance = instance
        self._times = times
        self._wall_offset_ms = wall_offset_ms
        self._phase = _Phase.SPARE
        self._known: Stored | None = None  # None: the store must be read before anything else
        self._known_at_ns = 0  # when it was learned: a spare's patience begins here
        self._looked_at_ns = 0
        self._act_at_ns = 0  # a holder's next renewal; after a failure, the next attempt
        self._watch = HolderWatch(probe_ns=times.probe_ns, return_ns=times.return_ns)
        self._wake_at_ns: int | None = None
        self._is_forgiven = False  # a standstill since the last news
        self._asked: ReadLease | WriteLease | None = None
        self._asked_at_ns = 0
        self._fence_floor = 0  # no lower fence is written by this instance
        self._fence: int | None = None  # of the term that `Lead` told
        self._believed_until_ns = 0
        self._cut_at_ns = -1
        self._is_suspended = False
        self._is_releasing = False

    def is_leading(self, now_ns: int) -> bool:
        """Whether this instance may act as the leader now. Told by the clock: also right in a
        process that stood still and has not been woken yet.
        """
        return self._is_believing and now_ns < self._believed_until_ns

    def on_wake(self, now_ns: int) -> list[LeaseEffect]:
        """The instant asked for by `WakeAt` has come."""
        return self._next(now_ns)

    def on_read(self, stored: Stored, now_ns: int) -> list[LeaseEffect]:
        """The store answered a `ReadLease`."""
        asked_at_ns = self._asked_at_ns
        self._asked = None
        owner = None if stored.lease is None else stored.lease.instance
        if owner == self._instance:  # also: a takeover of which the answer was lost
            assert stored.lease is not None
            self._phase = _Phase.HOLDER
            self._fence_floor = max(self._fence_floor, stored.lease.fence)
            self._known, self._act_at_ns = stored, now_ns
        elif self._phase is _Phase.HOLDER:
            if owner is None:  # the store forgot: whoever writes first has it
                self._known, self._act_at_ns = stored, now_ns
            elif self._fence is not None or self._is_releasing:
                return self._end(now_ns)
            else:  # taken and gone again before it could lead
                self._phase = _Phase.SPARE
                self._learn(stored, now_ns)
        else:
            self._looked_at_ns = now_ns
            known = self._known
            is_outdated = known is not None and (
                stored == known
                or (stored.revision < known.revision and self._known_at_ns >= asked_at_ns)
            )
            if not is_outdated:
                self._learn(stored, now_ns)
        return self._next(now_ns)

    def on_written(self, revision: int, now_ns: int) -> list[LeaseEffect]:
        """The store took the lease of a `WriteLease`."""
        write = self._asked
        assert isinstance(write, WriteLease)
        self._asked = None
        self._known = Stored(write.lease, revision)
        effects: list[LeaseEffect] = [Announce(self._known)]
        if write.lease.instance == NOBODY:
            return [*effects, *self._end(now_ns)]
        self._phase = _Phase.HOLDER
        self._fence_floor = max(self._fence_floor, write.lease.fence)
        self._believed_until_ns = self._asked_at_ns + self._times.patience_ns
        self._act_at_ns = self._asked_at_ns + self._times.beat_ns
        is_new = write.lease.fence != self._fence  # no spare that asks finds this holder yet
        is_late = is_new and now_ns - self._asked_at_ns >= self._times.lead_by_ns
        if is_late or now_ns >= self._believed_until_ns or self._asked_at_ns <= self._cut_at_ns:
            self._doubt(now_ns)  # so late that it says nothing about now
        elif not self._is_releasing:
            if is_new:
                self._fence = write.lease.fence
                effects.append(Lead(self._fence))
            elif self._is_suspended:
                effects.append(Resume())
            self._is_suspended = False
        return effects + self._next(now_ns)

    def on_conflict(self, now_ns: int) -> list[LeaseEffect]:
        """The store refused a `WriteLease`: its revision is another one."""
        self._asked = None
        self._doubt(now_ns)
        return self._next(now_ns)

    def on_no_answer(self, now_ns: int) -> list[LeaseEffect]:
        """The store did not answer; a write may have been taken, or may be taken yet.

        A spare begins its patience anew when the store answers again: a holder that could not
        reach the store either gets the first chance to go on.
        """
        self._asked = None
        self._doubt(max(now_ns, self._asked_at_ns + self._times.retry_ns))
        return self._next(now_ns)

    def on_announced(self, stored: Stored, now_ns: int) -> list[LeaseEffect]:
        """Another instance says what the store took; may be late, doubled or out of order."""
        if stored.lease is None or stored.lease.instance == self._instance:
            return []
        is_news = self._known is None or stored.revision > self._known.revision
        if is_news and self._phase is _Phase.SPARE:
            self._learn(stored, now_ns)
        elif is_news and self._phase is _Phase.HOLDER and self._asked is None:
            self._doubt(now_ns)  # the store has the last word
        return self._next(now_ns)

    def on_holder(self, instance: str | None, now_ns: int) -> list[LeaseEffect]:
        """The answer to an `AskHolder`: who says that it holds the lease, or that nobody does."""
        self._watch.on_answer(instance, now_ns)
        return self._next(now_ns)

    def on_holder_silent(self, now_ns: int) -> list[LeaseEffect]:
        """Nobody answered an `AskHolder`, and the bus did not say that nobody is there."""
        self._watch.on_silence(now_ns)
        return self._next(now_ns)

    def on_cut(self, now_ns: int) -> list[LeaseEffect]:
        """The connection to the bus broke: spares may take this instance for dead."""
        self._cut_at_ns = now_ns
        self._watch.on_cut()
        return self._suspend(now_ns) + self._next(now_ns)

    def raise_fence(self, above: int, now_ns: int) -> list[LeaseEffect]:
        """Somebody has seen the fence `above`: lead under a higher one, now or when the time comes.

        `Lead` tells the new fence once the store holds it. The own fence changes nothing.
        """
        if above != self._fence:
            self._fence_floor = max(self._fence_floor, above + 1)
        return self._next(now_ns)

    def release(self, now_ns: int) -> list[LeaseEffect]:
        """Stop leading now, and give the lease back so that a spare need not wait."""
        self._is_releasing = True
        return self._next(now_ns)

    @property
    def _is_believing(self) -> bool:
        """Whether it leads as far as it was told; the clock may know better."""
        return (
            self._phase is _Phase.HOLDER
            and self._fence is not None
            and not self._is_suspended
            and not self._is_releasing
        )

    def _learn(self, stored: Stored, now_ns: int) -> None:
        self._known, self._known_at_ns = stored, now_ns
        self._is_forgiven = False
        self._watch.on_news(stored)
        if stored.lease is not None:
            self._fence_floor = max(self._fence_floor, stored.lease.fence + 1)

    def _doubt(self, read_at_ns: int) -> None:
        self._known, self._act_at_ns = None, read_at_ns

    def _end(self, now_ns: int) -> list[LeaseEffect]:
        """The lease is out of this instance's hands."""
        self._phase = _Phase.RELEASED if self._is_releasing else _Phase.LOST
        return [Released() if self._is_releasing else Lost()]

    def _suspend(self, now_ns: int) -> list[LeaseEffect]:
        """A holder that believed in its lease stops, and looks before it writes."""
        if not self._is_believing:
            return []
        self._is_suspended = True
        if self._asked is None:
            self._doubt(now_ns)
        return [Suspend()]

    def _next(self, now_ns: int) -> list[LeaseEffect]:
        """What follows from the state: belief ends by the clock, the next question is asked in its
        time.
        """
        if self._phase in (_Phase.LOST, _Phase.RELEASED):
            return []
        self._notice_standstill(now_ns)
        effects = self._suspend(now_ns) if now_ns >= self._believed_until_ns else []
        wake_at_ns = [self._believed_until_ns] if self._is_believing else []
        if self._asked is None:
            if self._is_releasing and self._phase is _Phase.SPARE:
                return effects + self._end(now_ns)
            at_ns, question = self._plan(now_ns)
            if at_ns > now_ns:
                wake_at_ns.append(at_ns)
            else:
                self._asked, self._asked_at_ns = question, now_ns
                effects.append(question)
        is_writing = isinstance(self._asked, WriteLease)
        if self._phase is _Phase.SPARE and self._known is not None and not is_writing:
            if self._watch.ask(now_ns):
                effects.append(AskHolder())
            elif (ask_at_ns := self._watch.ask_at_ns) is not None:
                wake_at_ns.append(ask_at_ns)
            if not wake_at_ns:
                wake_at_ns.append(now_ns + self._times.beat_ns)  # to notice a standstill
        self._wake_at_ns = min(wake_at_ns, default=None)
        return effects if self._wake_at_ns is None else [*effects, WakeAt(self._wake_at_ns)]

    def _notice_standstill(self, now_ns: int) -> None:
        """Woken late, a spare has heard nothing because it did not listen: its patience begins
        anew, once. Often the whole machine stood still, and the holder with it.
        """
        late_ns = 0 if self._wake_at_ns is None else now_ns - self._wake_at_ns
        if self._phase is _Phase.SPARE and late_ns > self._times.beat_ns and not self._is_forgiven:
            self._is_forgiven = True
            self._known_at_ns = now_ns
            self._watch.on_standstill()

    def _plan(self, now_ns: int) -> tuple[int, ReadLease | WriteLease]:
        """The next question to the store, and when to ask it."""
        known = self._known
        if known is None:
            return self._act_at_ns, ReadLease()
        if self._phase is _Phase.HOLDER:
            is_urgent = self._is_releasing or self._fence_floor > (self._fence or 0)
            return now_ns if is_urgent else self._act_at_ns, self._write(known, now_ns)
        is_free = known.lease is not None and known.lease.instance == NOBODY
        if is_free or self._watch.is_gone(now_ns):
            return now_ns, self._write(known, now_ns)
        # Also where there is no lease: the store may have forgotten one whose holder still leads.
        due_at_ns = self._known_at_ns + self._times.ttl_ns
        look_at_ns = max(self._known_at_ns, self._looked_at_ns) + self._times.look_ns
        if look_at_ns < due_at_ns and now_ns < due_at_ns:
            return look_at_ns, ReadLease()
        return due_at_ns, self._write(known, now_ns)

    def _write(self, known: Stored, now_ns: int) -> WriteLease:
        fence, beat = self._fence_floor, 0
        if known.lease is None:
            # A term of its own even for a holder: others may have led in what the store forgot.
            fence = max(fence, (self._fence or 0) + 1, self._wall_offset_ms + now_ns // 1_000_000)
        elif known.lease.instance == self._instance and known.lease.fence == fence:
            beat = known.lease.beat + 1
        instance = NOBODY if self._is_releasing else self._instance
        return WriteLease(known.revision, LeaderLease(instance=instance, fence=fence, beat=beat))
