"""A lease in a store with compare-and-set, renewed by beats and taken over after silence.

No clocks are compared between hosts. The holder writes the lease again every beat. A spare takes it
when it has seen no new revision for `ttl_ns` of its own clock, by a write that succeeds only if the
revision is still the one that the spare knows. The holder trusts its lease for `patience_ns`, which
is less than `ttl_ns`, from before it sent its last successful write; a spare can only have seen
that write later. So a holder stops before a spare can begin. The fence distinguishes messages that
were in flight when it stopped.

The ttl is long, so that a busy or paused machine does not lose its leadership. The death of a
leader is detected sooner, because the bus knows that its connection is gone (see `holder_watch`);
so a holder that loses its connection stops at once, and reads the store before it continues. The
bus does not know a holder yet whose successful write was not confirmed: if the confirmation comes
late, the holder reads the store as well.

Announcements of writes may be lost, late or duplicated: they only affect when a spare loses
patience. The write decides.

Source: deferred batch scheduling, section 6 (hot spares that exchange heartbeats with the primary).
"""

from enum import Enum, auto

from shared.effects import WakeAt
from shared.lease.core.effects import (
    NO_INSTANCE,
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
from shared.wire.messages import LeaderLease


class _Phase(Enum):
    SPARE = auto()
    HOLDER = auto()
    LOST = auto()
    RELEASED = auto()


class LeaseCore:
    """One instance's part in the lease. Start with `on_wake`.

    At most one `ReadLease` or `WriteLease` is pending at a time.

    Args:
        instance: a name that no other process has or had.
        wall_offset_ms: wall clock minus the clock of `now_ns`, ms. If the store holds no lease, the
            fence begins at the wall clock: higher than the fences of a lost store.
    """

    def __init__(self, *, instance: str, times: LeaseTimes, wall_offset_ms: int) -> None:
        assert instance != NO_INSTANCE
        self._instance = instance
        self._times = times
        self._wall_offset_ms = wall_offset_ms
        self._phase = _Phase.SPARE
        self._known: Stored | None = None  # None: the store must be read first
        self._known_at_ns = 0  # when it was seen: a spare's patience begins here
        self._looked_at_ns = 0
        self._act_at_ns = 0  # a holder's next renewal; after a failure, the next attempt
        self._watch = HolderWatch(probe_ns=times.probe_ns, return_ns=times.return_ns)
        self._wake_at_ns: int | None = None
        self._had_standstill = False  # since the last news
        self._asked: ReadLease | WriteLease | None = None
        self._asked_at_ns = 0
        self._fence_floor = 0  # no lower fence is written by this instance
        self._fence: int | None = None  # of the term of the last `Lead`
        self._believed_until_ns = 0
        self._cut_at_ns = -1
        self._is_suspended = False
        self._is_releasing = False

    def is_leading(self, now_ns: int) -> bool:
        """Whether this instance may act as the leader now. It depends on the clock, so it is
        correct even in a process that was paused and has not been woken yet.
        """
        return self._is_believing and now_ns < self._believed_until_ns

    def on_wake(self, now_ns: int) -> list[LeaseEffect]:
        """The instant of `WakeAt` has come."""
        return self._next(now_ns)

    def on_read(self, stored: Stored, now_ns: int) -> list[LeaseEffect]:
        """The store answered a `ReadLease`."""
        asked_at_ns = self._asked_at_ns
        self._asked = None
        owner = None if stored.lease is None else stored.lease.instance
        if owner == self._instance:  # also a takeover whose confirmation was lost
            assert stored.lease is not None
            self._phase = _Phase.HOLDER
            self._fence_floor = max(self._fence_floor, stored.lease.fence)
            self._known, self._act_at_ns = stored, now_ns
        elif self._phase is _Phase.HOLDER:
            if owner is None:  # the store lost it: the first writer gets it
                self._known, self._act_at_ns = stored, now_ns
            elif self._fence is not None or self._is_releasing:
                return self._end(now_ns)
            else:  # taken and lost again before it could lead
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
        """The store accepted a `WriteLease`."""
        write = self._asked
        assert isinstance(write, WriteLease)
        self._asked = None
        self._known = Stored(write.lease, revision)
        effects: list[LeaseEffect] = [Announce(self._known)]
        if write.lease.instance == NO_INSTANCE:
            return [*effects, *self._end(now_ns)]
        self._phase = _Phase.HOLDER
        self._fence_floor = max(self._fence_floor, write.lease.fence)
        self._believed_until_ns = self._asked_at_ns + self._times.patience_ns
        self._act_at_ns = self._asked_at_ns + self._times.beat_ns
        is_new = write.lease.fence != self._fence  # spares cannot find this holder yet
        is_late = is_new and now_ns - self._asked_at_ns >= self._times.lead_by_ns
        if is_late or now_ns >= self._believed_until_ns or self._asked_at_ns <= self._cut_at_ns:
            self._doubt(now_ns)  # too late to say anything about now
        elif not self._is_releasing:
            if is_new:
                self._fence = write.lease.fence
                effects.append(Lead(self._fence))
            elif self._is_suspended:
                effects.append(Resume())
            self._is_suspended = False
        return effects + self._next(now_ns)

    def on_conflict(self, now_ns: int) -> list[LeaseEffect]:
        """The store refused a `WriteLease`: it has another revision."""
        self._asked = None
        self._doubt(now_ns)
        return self._next(now_ns)

    def on_no_answer(self, now_ns: int) -> list[LeaseEffect]:
        """The store did not answer; a write may have succeeded, or may still succeed.

        A spare restarts its patience when the store answers again: a holder that could not reach
        the store either gets the first chance to continue.
        """
        self._asked = None
        self._doubt(max(now_ns, self._asked_at_ns + self._times.retry_ns))
        return self._next(now_ns)

    def on_announced(self, stored: Stored, now_ns: int) -> list[LeaseEffect]:
        """Another instance announces a write; may be late, duplicated or out of order."""
        if stored.lease is None or stored.lease.instance == self._instance:
            return []
        is_news = self._known is None or stored.revision > self._known.revision
        if is_news and self._phase is _Phase.SPARE:
            self._learn(stored, now_ns)
        elif is_news and self._phase is _Phase.HOLDER and self._asked is None:
            self._doubt(now_ns)  # the store decides
        return self._next(now_ns)

    def on_holder(self, instance: str | None, now_ns: int) -> list[LeaseEffect]:
        """The answer to an `AskHolder`: the holder's instance; None: it has no subscription."""
        self._watch.on_answer(instance, now_ns)
        return self._next(now_ns)

    def on_holder_silent(self, now_ns: int) -> list[LeaseEffect]:
        """An `AskHolder` timed out, without the bus reporting that there is no subscription."""
        self._watch.on_silence(now_ns)
        return self._next(now_ns)

    def on_cut(self, now_ns: int) -> list[LeaseEffect]:
        """The connection to the bus broke: spares may consider this instance dead."""
        self._cut_at_ns = now_ns
        self._watch.on_cut()
        return self._suspend(now_ns) + self._next(now_ns)

    def raise_fence(self, above: int, now_ns: int) -> list[LeaseEffect]:
        """A worker has seen the fence `above`: lead under a higher one, now or later.

        `Lead` has the new fence once the store holds it. The instance's own fence changes nothing.
        """
        if above != self._fence:
            self._fence_floor = max(self._fence_floor, above + 1)
        return self._next(now_ns)

    def release(self, now_ns: int) -> list[LeaseEffect]:
        """Stop leading now, and release the lease so that a spare need not wait."""
        self._is_releasing = True
        return self._next(now_ns)

    @property
    def _is_believing(self) -> bool:
        """Whether it leads by its last state, apart from the clock."""
        return (
            self._phase is _Phase.HOLDER
            and self._fence is not None
            and not self._is_suspended
            and not self._is_releasing
        )

    def _learn(self, stored: Stored, now_ns: int) -> None:
        self._known, self._known_at_ns = stored, now_ns
        self._had_standstill = False
        self._watch.on_news(stored)
        if stored.lease is not None:
            self._fence_floor = max(self._fence_floor, stored.lease.fence + 1)

    def _doubt(self, read_at_ns: int) -> None:
        self._known, self._act_at_ns = None, read_at_ns

    def _end(self, now_ns: int) -> list[LeaseEffect]:
        """The lease is lost or released."""
        self._phase = _Phase.RELEASED if self._is_releasing else _Phase.LOST
        return [Released() if self._is_releasing else Lost()]

    def _suspend(self, now_ns: int) -> list[LeaseEffect]:
        """Stop leading, and read the store before the next write."""
        if not self._is_believing:
            return []
        self._is_suspended = True
        if self._asked is None:
            self._doubt(now_ns)
        return [Suspend()]

    def _next(self, now_ns: int) -> list[LeaseEffect]:
        """Effects of the state and the clock: suspend an expired lease, send the next request."""
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
        """A spare that wakes late was paused and received nothing: it restarts its patience, once.
        Often the whole machine was paused, including the holder.
        """
        late_ns = 0 if self._wake_at_ns is None else now_ns - self._wake_at_ns
        if (
            self._phase is _Phase.SPARE
            and late_ns > self._times.beat_ns
            and not self._had_standstill
        ):
            self._had_standstill = True
            self._known_at_ns = now_ns
            self._watch.on_standstill()

    def _plan(self, now_ns: int) -> tuple[int, ReadLease | WriteLease]:
        """The next request to the store, and when to send it."""
        known = self._known
        if known is None:
            return self._act_at_ns, ReadLease()
        if self._phase is _Phase.HOLDER:
            is_urgent = self._is_releasing or self._fence_floor > (self._fence or 0)
            return now_ns if is_urgent else self._act_at_ns, self._write(known, now_ns)
        is_free = known.lease is not None and known.lease.instance == NO_INSTANCE
        if is_free or self._watch.is_gone(now_ns):
            return now_ns, self._write(known, now_ns)
        # Also without a lease: the store may have lost one whose holder still leads.
        due_at_ns = self._known_at_ns + self._times.ttl_ns
        look_at_ns = max(self._known_at_ns, self._looked_at_ns) + self._times.look_ns
        if look_at_ns < due_at_ns and now_ns < due_at_ns:
            return look_at_ns, ReadLease()
        return due_at_ns, self._write(known, now_ns)

    def _write(self, known: Stored, now_ns: int) -> WriteLease:
        fence, beat = self._fence_floor, 0
        if known.lease is None:
            # A new term even for a holder: another may have led in what the store lost.
            fence = max(fence, (self._fence or 0) + 1, self._wall_offset_ms + now_ns // 1_000_000)
        elif known.lease.instance == self._instance and known.lease.fence == fence:
            beat = known.lease.beat + 1
        instance = NO_INSTANCE if self._is_releasing else self._instance
        return WriteLease(known.revision, LeaderLease(instance=instance, fence=fence, beat=beat))
