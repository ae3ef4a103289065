"""The life of advisories (SYMPHONY, section 3.3): takes events and the time, returns effects."""

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from services.tracker.core.agent_turns import AgentTurns, Followed, Foreseen
from services.tracker.core.agents import AgentFollower, AgentLimits
from services.tracker.core.effects import (
    Count,
    Drop,
    Effect,
    EndTrace,
    Expect,
    ObserveLead,
    Outcome,
    SendVerdicts,
)
from services.tracker.core.learned import Learned
from services.tracker.core.live_limits import LiveLimits
from services.tracker.core.order import AdvisoryOrder
from services.tracker.core.records import Record, SessionKey
from services.tracker.core.seen_turns import SeenTurns
from services.tracker.core.shards import UNDIVIDED, Shards, handed_on
from services.tracker.core.timers import RecordTimers
from services.tracker.core.tracker_limits import Limits
from services.tracker.core.unannounced import Unannounced
from services.tracker.core.verdicts import Verdicts
from shared.effects import WakeAt
from shared.errors import NoCapacity, NotFound, TenantQuota
from shared.ids import WorkerId
from shared.locations import worth_keeping
from shared.wire.advisory_checks import check_advisory
from shared.wire.messages import (
    Advisory,
    AdvisoryKey,
    AgentPrefix,
    AgentTurnLeft,
    HintStatus,
    TurnArrived,
    TurnsForeseen,
)

STEP_MAX = 128  # records that one event looks at or ends, before other events are handled
End = Literal["used", "late", "expired", "overtaken", "invalidated"]


class TrackerCore:
    """At most one live advisory per session.

    ``on_...`` return the effects to perform, in order; the two that answer a request return the
    record too. Every `Expect` must be followed by an `on_placed`, with no worker if the scheduler
    did not answer.

    Args:
        tracker_id: of this process.
        is_spare: another tracker leads. This one receives agents' turns, so that it learns the same
            of them as the leader; it does not receive advisories.
        shards: the share of sessions and workflows that this tracker has.
    """

    def __init__(
        self,
        limits: Limits,
        agents: AgentTurns | None = None,
        *,
        tracker_id: str = "",
        is_spare: bool = False,
        shards: Shards = UNDIVIDED,
    ) -> None:
        self._is_spare = is_spare
        self._shards = shards
        self._limits = limits = limits.of_shard(shards.num)
        self._agents = agents or AgentTurns(AgentFollower(AgentLimits()))
        self._learned = Learned(limits)
        self._order = AdvisoryOrder()
        self._seen_turns = SeenTurns()
        self._unannounced = Unannounced()
        self._verdicts = Verdicts(tracker_id, shards.own)
        self._live: dict[SessionKey, Record] = {}
        self._live_limits = LiveLimits(limits)
        self._over: OrderedDict[SessionKey, Record] = OrderedDict()
        self._timers = RecordTimers()
        self._wake_at_ns: int | None = None
        self._out: list[Effect] = []

    @property
    def num_live(self) -> int:
        return len(self._live)

    def on_lead(self, now_ns: int) -> list[Effect]:
        """This tracker leads from now on. Reservations that the old leader made expire by
        themselves; turns that were foreseen while no tracker led are announced.
        """
        self._is_spare = False
        return self._foresee(self._unannounced.take(now_ns), now_ns)

    def get(self, key: AdvisoryKey) -> Record:
        """The session's advisory, live or recently ended.

        Raises:
            NotFound: none, or it ended long ago.
        """
        name = (key.tenant, key.session_id)
        record = self._live.get(name) or self._over.get(name)
        if record is None:
            raise NotFound(
                f"no advisory for session {key.session_id!r}",
                param="session_id",
                code="advisory_not_found",
            )
        return record

    def status(self, now_ns: int) -> HintStatus:
        """What `symphony status` shows."""
        return self._learned.status(len(self._live), now_ns)

    def agent_hint_counts(self) -> dict[str, int]:
        """Hints of agents' next turns so far, by outcome."""
        return self._agents.counts()

    def on_submit(self, advisory: Advisory, now_ns: int) -> tuple[Record, list[Effect]]:
        """A client announces a session's turn, perhaps again.

        Raises:
            InvalidRequest: a field is out of bounds.
            NoCapacity: too many advisories are live.
            TenantQuota: too many of the tenant's are.
            HintsThrottled: it was sent by NATS directly, and too many such had no turn.
        """
        check_advisory(advisory)
        if advisory.frontend_id is None:
            advisory = self._learned.charged(advisory, now_ns)
        return self._announce(advisory, now_ns), self._take_effects()

    def _announce(
        self,
        advisory: Advisory,
        now_ns: int,
        foreseen: float | None = None,
        prefix: AgentPrefix | None = None,
    ) -> Record:
        """Announce a session's turn; the effects are returned with the next ones.

        Args:
            foreseen: as in `Learned.begin`.
            prefix: as in `Foreseen`.

        Raises:
            NoCapacity: too many advisories are live.
            TenantQuota: too many of the tenant's are.
        """
        key = (advisory.tenant, advisory.session_id)
        record = self._live.get(key)
        if record is None:
            self._live_limits.check(advisory, is_foreseen=foreseen is not None)
            record = self._learned.begin(advisory, now_ns, foreseen)
            self._live_limits.add(record)
            self._live[key] = record
            self._over.pop(key, None)
            self._out.append(Count("submitted" if record.is_acted_on else "tracked"))
        else:
            self._live_limits.num_foreseen -= record.origin.is_own and foreseen is None
            self._learned.merge(record, advisory, now_ns, foreseen)
            self._out.append(Count("merged"))
        if foreseen is None:
            if advisory.ordered:
                self._order.add(record, advisory.place, advisory.workflow_id)
            else:
                self._order.remove(record)
        record.kv_at = worth_keeping(advisory.kv_at) or record.kv_at
        record.prefix = prefix or record.prefix
        if advisory.trace:
            self._end_trace(record, "merged")
            record.trace = advisory.trace
        is_unplaced = record.state == "expected" and now_ns >= record.request.ask_at_ns
        is_outdated = is_unplaced or not record.is_up_to_date
        if record.is_acted_on and not record.request.is_pending and is_outdated:
            self._ask(record, now_ns)
        self._schedule(record)
        return record

    def on_placed(self, key: AdvisoryKey, worker_id: WorkerId | None, now_ns: int) -> list[Effect]:
        """The scheduler answered an `Expect`; without a worker: it had none, or did not answer."""
        record = self._live.get((key.tenant, key.session_id))
        if record is None:
            if worker_id is not None:  # the advisory ended meanwhile
                self._out.append(Drop(key))
            return self._take_effects()
        record.request.is_pending = False
        record.worker_id = worker_id
        record.state = "placed" if worker_id is not None else "expected"
        if worker_id is None:
            record.request.ask_at_ns = now_ns + self._limits.retry_ns
        elif not record.is_up_to_date:
            self._ask(record, now_ns)
        else:
            record.request.ask_at_ns = record.request.expires_at_ns - self._limits.retry_ns
        self._schedule(record)
        return self._take_effects()

    def on_invalidate(self, key: AdvisoryKey, now_ns: int) -> tuple[Record, list[Effect]]:
        """A client withdraws an announced turn. An advisory that has ended stays unchanged.

        Raises:
            NotFound: there is no such advisory.
        """
        record = self.get(key)
        if record.over_at_ns is None:
            self._drop(record)
            self._finish(record, "invalidated", now_ns)
        return record, self._take_effects()

    def on_turn_arrived(self, arrived: TurnArrived, now_ns: int) -> list[Effect]:
        """A session's turn was placed. `reserved` proves a reservation even when the scheduler's
        answer is still in flight.
        """
        if not self._seen_turns.is_new(arrived):
            return self._take_effects()
        key = (arrived.tenant, arrived.session_id)
        self._learned.on_turn(arrived, now_ns)
        followed = self._follow(arrived, now_ns)
        names = [] if arrived.part == "workflow" else [key]
        if followed.expected_as is not None:
            names.append((arrived.tenant, followed.expected_as))
        if self._is_spare:
            for name in [key, *names]:
                self._unannounced.came(name)
            self._unannounced.add(followed.foreseen, now_ns)
            return []
        records = [self._live[name] for name in names if name in self._live]
        if not records:
            if arrived.part != "workflow":
                self._miss(arrived, now_ns)
            return self._foresee(followed.foreseen, now_ns)
        for record in records:
            # Any remaining reservation is useless now. `reserved` does not say which name was used:
            # a client may have announced a turn in its session that was foreseen as well.
            if not arrived.reserved or record.key != key:
                self._drop(record)
            in_time = arrived.reserved or record.state == "placed"
            record.worker_id = arrived.worker_id
            self._order.came(record)
            self._finish(record, "used" if in_time else "late", now_ns)
            self._see_lead(record, now_ns)
        self._end_overtaken(now_ns)
        return self._foresee(followed.foreseen, now_ns)

    def on_foreseen(self, message: TurnsForeseen, now_ns: int) -> list[Effect]:
        """Another shard foresees turns of this shard's sessions."""
        foreseen = handed_on(message)
        if self._is_spare:
            self._unannounced.add(foreseen, now_ns)
            return []
        return self._foresee(foreseen, now_ns)

    def on_agent_turn_left(self, left: AgentTurnLeft, now_ns: int) -> list[Effect]:
        """An agent's turn has ended."""
        foreseen = self._agents.on_left(left, now_ns)
        if self._is_spare:
            self._unannounced.add(foreseen, now_ns)
            return []
        return self._foresee(foreseen, now_ns)

    def on_wake(self, now_ns: int) -> list[Effect]:
        """The instant of `WakeAt` has come."""
        self._wake_at_ns = None
        self._end_overtaken(now_ns)
        for _ in range(STEP_MAX):  # the rest at the next wake, which is immediate
            next_at_ns = self._timers.next_at_ns
            if next_at_ns is None or next_at_ns > now_ns:
                break
            if (record := self._timers.pop_due()) is not None:
                self._look_at(record, now_ns)
        self._out += [SendVerdicts(*verdicts) for verdicts in self._verdicts.due(now_ns)]
        return self._take_effects()

    def _foresee(self, foreseen: Iterable[Foreseen], now_ns: int) -> list[Effect]:
        """Announce turns that probably follow an agent's, as if their clients had announced them,
        but without a charge.
        """
        own, forwarded = self._shards.divide(foreseen)
        self._out += forwarded
        for each in own:
            with suppress(NoCapacity, TenantQuota):
                self._announce(each.advisory, now_ns, each.chance, each.prefix)
        return self._take_effects()

    def _follow(self, arrived: TurnArrived, now_ns: int) -> Followed:
        if arrived.part == "session":
            return Followed()
        return self._agents.on_arrived(arrived, now_ns)

    def _miss(self, arrived: TurnArrived, now_ns: int) -> None:
        """A turn arrived without a live advisory here. If it had a reservation and its workflow is
        another shard's, that shard expected it.
        """
        if not (arrived.part == "session" and arrived.reserved):
            self._out.append(Count("missed"))
        self._see_after_expiry(self._over.get((arrived.tenant, arrived.session_id)), now_ns)

    def _end_overtaken(self, now_ns: int) -> None:
        for _ in range(STEP_MAX):
            earlier = self._order.overtaken()
            if earlier is None:
                return
            self._drop(earlier)
            self._finish(earlier, "overtaken", now_ns)
        if self._wake_at_ns is None or now_ns < self._wake_at_ns:  # for the rest
            self._wake_at_ns = now_ns
            self._out.append(WakeAt(now_ns))

    def _see_after_expiry(self, record: Record | None, now_ns: int) -> None:
        """A turn arrived after its advisory ended: if that expired, correct its outcome."""
        if record is None or record.state != "expired" or record.came_after_expiry:
            return
        record.came_after_expiry = True
        self._learned.on_end(record, now_ns)
        self._verdicts.add(record, now_ns)
        self._see_lead(record, now_ns)

    def _see_lead(self, record: Record, now_ns: int) -> None:
        self._learned.on_lead(record, now_ns)
        self._out.append(ObserveLead((now_ns - record.created_at_ns) / 1e9))

    def _ask(self, record: Record, now_ns: int) -> None:
        self._out.append(Expect(record.ask(now_ns)))

    def _drop(self, record: Record) -> None:
        """Release its reservation, or the one that is requested."""
        if record.is_acted_on:
            self._out.append(Drop(record.wire_key))

    def _look_at(self, record: Record, now_ns: int) -> None:
        if record.over_at_ns is not None:
            if self._over.get(record.key) is record:
                del self._over[record.key]
            return
        if now_ns >= record.expires_at_ns:
            self._finish(record, "expired", now_ns)
            return
        if self._wants_to_ask(record) and now_ns >= record.request.ask_at_ns:
            self._ask(record, now_ns)
        self._schedule(record)

    def _wants_to_ask(self, record: Record) -> bool:
        """Whether it has no reservation, or one that ends before its expiry."""
        if record.request.is_pending or not record.is_acted_on:
            return False
        return record.state == "expected" or record.request.expires_at_ns < record.expires_at_ns

    def _finish(self, record: Record, state: End, now_ns: int) -> None:
        del self._live[record.key]
        self._order.remove(record)
        self._live_limits.remove(record)
        record.state = state
        record.over_at_ns = now_ns
        self._over[record.key] = record
        if len(self._over) > self._limits.advisories_max:
            self._over.popitem(last=False)
        self._learned.on_end(record, now_ns)
        self._verdicts.add(record, now_ns)
        self._end_trace(record, state)
        if record.is_acted_on or state == "invalidated":
            self._out.append(Count(state))
        else:
            self._out.append(Count("tracked_used" if state == "late" else "tracked_expired"))
        self._schedule(record)

    def _end_trace(self, record: Record, outcome: Outcome) -> None:
        if record.trace:
            self._out.append(EndTrace(record.trace, outcome, record.worker_id))
            record.trace = ""

    def _schedule(self, record: Record) -> None:
        """Look at the record when something is next due; an early look does no harm."""
        if record.over_at_ns is not None:
            due_at_ns = record.over_at_ns + self._limits.keep_ns
        elif self._wants_to_ask(record):
            due_at_ns = min(record.expires_at_ns, record.request.ask_at_ns)
        else:
            due_at_ns = record.expires_at_ns
        is_over = record.over_at_ns is not None
        if is_over or record.due_at_ns is None or due_at_ns < record.due_at_ns:
            self._timers.set(record, due_at_ns)
            self._timers.forget_stale(self._live, self._over)

    def _take_effects(self) -> list[Effect]:
        next_at_ns = self._timers.next_at_ns
        if (send_at_ns := self._verdicts.send_at_ns) is not None:
            next_at_ns = send_at_ns if next_at_ns is None else min(next_at_ns, send_at_ns)
        if next_at_ns is not None and (self._wake_at_ns is None or next_at_ns < self._wake_at_ns):
            self._wake_at_ns = next_at_ns
            self._out.append(WakeAt(next_at_ns))
        effects = self._out.copy()
        self._out.clear()
        return effects
