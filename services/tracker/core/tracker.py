"""The life of advisories (SYMPHONY, section 3.3): told events and the time, returns what to do."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Literal

from services.tracker.core.agent_turns import AgentTurns, Followed, Foreseen
from services.tracker.core.agents import AgentFollower, AgentLimits
from services.tracker.core.arrivals import Arrivals
from services.tracker.core.effects import (
    Count,
    Drop,
    Effect,
    EndTrace,
    Expect,
    Outcome,
    SeeLead,
    Tell,
)
from services.tracker.core.learned import Learned
from services.tracker.core.limits import Limits
from services.tracker.core.order import Order
from services.tracker.core.records import Record, SessionKey
from services.tracker.core.shards import UNDIVIDED, Shards, handed_on
from services.tracker.core.unsaid import Unsaid
from services.tracker.core.verdicts import Verdicts
from shared.advisory_checks import check_advisory
from shared.effects import WakeAt
from shared.errors import NoCapacity, NotFound, TenantQuota
from shared.ids import TenantId, WorkerId
from shared.locations import worth_keeping
from shared.messages import (
    Advisory,
    AdvisoryKey,
    AgentPrefix,
    AgentTurnLeft,
    HintStatus,
    TurnArrived,
    TurnsForeseen,
)

STALE_TIMERS_MIN = 1024
STEP_MAX = 128  # records that are looked at, or given up, before others have their turn
FORESEEN_SHARE = 4  # one of so many live advisories at most is nobody's
End = Literal["used", "late", "expired", "overtaken", "invalidated"]


class TrackerCore:
    """At most one live advisory a session.

    ``on_...`` return the effects to perform, in order; the two that answer somebody return the
    record too. Every `Expect` must be followed by an `on_placed`, with no worker if the scheduler
    did not answer.

    Args:
        tracker_id: of this life of the tracker.
        is_spare: another tracker leads. This one hears what agents do, so that it knows what that
            one has learned of them; what is announced to the other it cannot hear.
        shards: which part of the house this one has.
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
        self._order = Order()
        self._arrivals = Arrivals()
        self._unsaid = Unsaid()
        self._verdicts = Verdicts(tracker_id, shards.own)
        self._live: dict[SessionKey, Record] = {}
        self._num_of: Counter[TenantId] = Counter()  # live ones
        self._num_foreseen = 0  # of them, those that nobody sent
        self._over: OrderedDict[SessionKey, Record] = OrderedDict()
        self._due: list[tuple[int, int, Record]] = []
        self._num_due = 0
        self._wake_at_ns: int | None = None
        self._out: list[Effect] = []

    @property
    def num_live(self) -> int:
        return len(self._live)

    def on_lead(self, now_ns: int) -> list[Effect]:
        """The other one is gone. Places that are kept on its word end by themselves; what was
        foreseen while nobody led is announced.
        """
        self._is_spare = False
        return self._foresee(self._unsaid.take(now_ns), now_ns)

    def get(self, key: AdvisoryKey) -> Record:
        """The session's advisory, live or recently over.

        Raises:
            NotFound: none, or over for long.
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

    def on_submit(self, advisory: Advisory, now_ns: int) -> tuple[Record, list[Effect]]:
        """A session's turn is announced from outside, perhaps again.

        Raises:
            InvalidRequest: a field is out of bounds.
            NoCapacity: too many advisories live.
            TenantQuota: too many of the tenant's do.
            HintsThrottled: it came past the frontends, and too many such came to nothing.
        """
        check_advisory(advisory)
        if advisory.frontend_id is None:
            advisory = self._learned.charged(advisory, now_ns)
        record = self._announce(advisory, now_ns)
        return record, self._take_effects()

    def _announce(
        self,
        advisory: Advisory,
        now_ns: int,
        foreseen: float | None = None,
        prefix: AgentPrefix | None = None,
    ) -> Record:
        """A session's turn is announced; the effects go out with the next ones.

        Args:
            foreseen: as in `Learned.begin`.
            prefix: as in `Foreseen`.

        Raises:
            NoCapacity: too many advisories live.
            TenantQuota: too many of the tenant's do.
        """
        key = (advisory.tenant, advisory.session_id)
        record = self._live.get(key)
        if record is None:
            self._check_room(advisory.tenant, is_foreseen=foreseen is not None)
            record = self._learned.begin(advisory, now_ns, foreseen)
            self._num_foreseen += record.is_own
            self._live[key] = record
            self._num_of[advisory.tenant] += 1
            self._over.pop(key, None)
            self._out.append(Count("submitted" if record.is_acted_on else "tracked"))
        else:
            self._num_foreseen -= record.is_own and foreseen is None
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
        is_unplaced = record.state == "expected" and now_ns >= record.ask_at_ns
        if record.is_acted_on and not record.is_asking and (is_unplaced or not record.is_told):
            self._ask(record, now_ns)
        self._schedule(record)
        return record

    def on_placed(self, key: AdvisoryKey, worker_id: WorkerId | None, now_ns: int) -> list[Effect]:
        """The scheduler answered an `Expect`, or (no worker) could not."""
        record = self._live.get((key.tenant, key.session_id))
        if record is None:
            if worker_id is not None:  # the place came too late to be wanted
                self._out.append(Drop(key))
            return self._take_effects()
        record.is_asking = False
        record.worker_id = worker_id
        record.state = "placed" if worker_id is not None else "expected"
        if worker_id is None:
            record.ask_at_ns = now_ns + self._limits.retry_ns
        elif not record.is_told:
            self._ask(record, now_ns)
        else:
            record.ask_at_ns = record.told_expires_at_ns - self._limits.retry_ns
        self._schedule(record)
        return self._take_effects()

    def on_invalidate(self, key: AdvisoryKey, now_ns: int) -> tuple[Record, list[Effect]]:
        """The announced turn is not coming. An advisory that is over stays what it is.

        Raises:
            NotFound: nothing known of it.
        """
        record = self.get(key)
        if record.over_at_ns is None:
            self._drop(record)
            self._finish(record, "invalidated", now_ns)
        return record, self._take_effects()

    def on_turn_arrived(self, arrived: TurnArrived, now_ns: int) -> list[Effect]:
        """A session's turn was placed. `reserved` proves a place even when the scheduler's answer
        is still on its way.
        """
        if not self._arrivals.is_new(arrived):
            return self._take_effects()
        key = (arrived.tenant, arrived.session_id)
        followed = self._follow(arrived, now_ns)
        names = [] if arrived.part == "workflow" else [key]
        if followed.expected_as is not None:
            names.append((arrived.tenant, followed.expected_as))
        if self._is_spare:
            for name in [key, *names]:
                self._unsaid.came(name)
            self._unsaid.add(followed.foreseen, now_ns)
            return []
        records = [self._live[name] for name in names if name in self._live]
        if not records:
            if arrived.part != "workflow":
                self._miss(arrived, now_ns)
            return self._foresee(followed.foreseen, now_ns)
        for record in records:
            # Whatever is reserved still, is of no use any more. `reserved` does not say under
            # which name: a client may have announced, in its session, what was foreseen too.
            if not arrived.reserved or record.key != key:
                self._drop(record)
            in_time = arrived.reserved or record.state == "placed"
            record.worker_id = arrived.worker_id
            self._order.came(record)
            self._finish(record, "used" if in_time else "late", now_ns)
            self._see_lead(record, now_ns)
        self._give_up_overtaken(now_ns)
        return self._foresee(followed.foreseen, now_ns)

    def on_foreseen(self, message: TurnsForeseen, now_ns: int) -> list[Effect]:
        """Another shard foresees turns of sessions that are this one's."""
        foreseen = handed_on(message)
        if self._is_spare:
            self._unsaid.add(foreseen, now_ns)
            return []
        return self._foresee(foreseen, now_ns)

    def on_agent_turn_left(self, left: AgentTurnLeft, now_ns: int) -> list[Effect]:
        """An agent's turn is over."""
        foreseen = self._agents.on_left(left, now_ns)
        if self._is_spare:
            self._unsaid.add(foreseen, now_ns)
            return []
        return self._foresee(foreseen, now_ns)

    def on_wake(self, now_ns: int) -> list[Effect]:
        """The instant asked for with `WakeAt` has come."""
        self._wake_at_ns = None
        self._give_up_overtaken(now_ns)
        for _ in range(STEP_MAX):  # the others at the next wake, which is at once
            if not self._due or self._due[0][0] > now_ns:
                break
            at_ns, _, record = heappop(self._due)
            if record.due_at_ns == at_ns:
                record.due_at_ns = None
                self._look_at(record, now_ns)
        self._out += [Tell(*told) for told in self._verdicts.due(now_ns)]
        return self._take_effects()

    def _foresee(self, foreseen: Iterable[Foreseen], now_ns: int) -> list[Effect]:
        """Turns that follow an agent's are expected as if their clients had announced them, and
        nobody's account pays for it.
        """
        own, passed = self._shards.divide(foreseen)
        self._out += passed
        for each in own:
            with suppress(NoCapacity, TenantQuota):
                self._announce(each.advisory, now_ns, each.chance, each.prefix)
        return self._take_effects()

    def _follow(self, arrived: TurnArrived, now_ns: int) -> Followed:
        if arrived.part == "session":
            return Followed()
        return self._agents.on_arrived(arrived, now_ns)

    def _miss(self, arrived: TurnArrived, now_ns: int) -> None:
        """A turn came that is not expected here.

        One that has a place all the same, and whose workflow is another shard's, that one expected.
        """
        if not (arrived.part == "session" and arrived.reserved):
            self._out.append(Count("missed"))
        self._see_after_all(self._over.get((arrived.tenant, arrived.session_id)), now_ns)

    def _give_up_overtaken(self, now_ns: int) -> None:
        for _ in range(STEP_MAX):
            earlier = self._order.overtaken()
            if earlier is None:
                return
            self._drop(earlier)
            self._finish(earlier, "overtaken", now_ns)
        if self._wake_at_ns is None or now_ns < self._wake_at_ns:  # for the others
            self._wake_at_ns = now_ns
            self._out.append(WakeAt(now_ns))

    def _see_after_all(self, record: Record | None, now_ns: int) -> None:
        """A turn came that is not expected any more: was it only given up too soon?"""
        if record is None or record.state != "expired" or record.came_after_all:
            return
        record.came_after_all = True
        self._learned.on_end(record, now_ns)
        self._verdicts.add(record, now_ns)
        self._see_lead(record, now_ns)

    def _see_lead(self, record: Record, now_ns: int) -> None:
        self._learned.on_lead(record, now_ns)
        self._out.append(SeeLead((now_ns - record.created_at_ns) / 1e9))

    def _ask(self, record: Record, now_ns: int) -> None:
        message = record.tell(now_ns)
        self._out.append(Expect(message))

    def _drop(self, record: Record) -> None:
        """Give back the place that is kept for it, or asked for."""
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
        if self._wants_to_ask(record) and now_ns >= record.ask_at_ns:
            self._ask(record, now_ns)
        self._schedule(record)

    def _check_room(self, tenant: TenantId, *, is_foreseen: bool) -> None:
        limits = self._limits
        if 0 < limits.tenant_advisories_max <= self._num_of[tenant]:
            raise TenantQuota(
                f"this tenant has too many advisories live: {limits.tenant_advisories_max}"
            )
        is_full = len(self._live) >= limits.advisories_max
        if is_full or (
            is_foreseen and self._num_foreseen * FORESEEN_SHARE >= limits.advisories_max
        ):
            raise NoCapacity("too many advisories are live")

    def _wants_to_ask(self, record: Record) -> bool:
        """Whether it has no place, or one that ends before its expiry."""
        if record.is_asking or not record.is_acted_on:
            return False
        return record.state == "expected" or record.told_expires_at_ns < record.expires_at_ns

    def _finish(self, record: Record, state: End, now_ns: int) -> None:
        del self._live[record.key]
        self._order.remove(record)
        self._num_foreseen -= record.is_own
        tenant = record.key[0]
        self._num_of[tenant] -= 1
        if not self._num_of[tenant]:
            del self._num_of[tenant]
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
        """Look at the record when something is next due; a look that comes early does no harm."""
        if record.over_at_ns is not None:
            due_at_ns = record.over_at_ns + self._limits.keep_ns
        elif self._wants_to_ask(record):
            due_at_ns = min(record.expires_at_ns, record.ask_at_ns)
        else:
            due_at_ns = record.expires_at_ns
        is_over = record.over_at_ns is not None
        if is_over or record.due_at_ns is None or due_at_ns < record.due_at_ns:
            self._num_due += 1
            record.due_at_ns = due_at_ns
            heappush(self._due, (due_at_ns, self._num_due, record))
            self._forget_stale_timers()

    def _forget_stale_timers(self) -> None:
        """Keep the timers that count, once they are less than about half: a session that is
        announced and taken back again and again leaves one at every turn.
        """
        num_known = len(self._live) + len(self._over)
        if len(self._due) <= 2 * num_known + STALE_TIMERS_MIN:
            return
        known = {id(record) for records in (self._live, self._over) for record in records.values()}
        self._due = [due for due in self._due if id(due[2]) in known and due[2].due_at_ns == due[0]]
        heapify(self._due)

    def _take_effects(self) -> list[Effect]:
        next_at_ns = self._due[0][0] if self._due else None
        if (tell_at_ns := self._verdicts.tell_at_ns) is not None:
            next_at_ns = tell_at_ns if next_at_ns is None else min(next_at_ns, tell_at_ns)
        if next_at_ns is not None and (self._wake_at_ns is None or next_at_ns < self._wake_at_ns):
            self._wake_at_ns = next_at_ns
            self._out.append(WakeAt(next_at_ns))
        effects = self._out.copy()
        self._out.clear()
        return effects
