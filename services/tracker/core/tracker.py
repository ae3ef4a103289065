"""The life of advisories (SYMPHONY, section 3.3): told events and the time, returns what to do."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Literal

from services.tracker.core.agent_turns import AgentTurns
from services.tracker.core.agents import AgentFollower, AgentLimits
from services.tracker.core.checks import check_advisory
from services.tracker.core.effects import Count, Drop, Effect, Expect
from services.tracker.core.limits import SECOND_NS, Limits
from services.tracker.core.records import Record, SessionKey
from shared.effects import WakeAt
from shared.errors import NoCapacity, NotFound, TenantQuota
from shared.ids import TenantId, WorkerId
from shared.locations import worth_keeping
from shared.messages import Advisory, AdvisoryKey, AgentTurnLeft, ExpectSession, TurnArrived

STALE_TIMERS_MIN = 1024


class TrackerCore:
    """At most one live advisory a session.

    ``on_...`` return the effects to perform, in order; the two that answer somebody return the
    record too. Every `Expect` must be followed by an `on_placed`, with no worker if the scheduler
    did not answer.
    """

    def __init__(self, limits: Limits, agents: AgentTurns | None = None) -> None:
        self._limits = limits
        self._agents = agents or AgentTurns(AgentFollower(AgentLimits()))
        self._live: dict[SessionKey, Record] = {}
        self._num_of: Counter[TenantId] = Counter()  # live ones
        self._over: OrderedDict[SessionKey, Record] = OrderedDict()
        self._due: list[tuple[int, int, Record]] = []
        self._num_due = 0
        self._wake_at_ns: int | None = None
        self._out: list[Effect] = []

    @property
    def num_live(self) -> int:
        return len(self._live)

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

    def on_submit(self, advisory: Advisory, now_ns: int) -> tuple[Record, list[Effect]]:
        """A session's turn is announced, perhaps again.

        Raises:
            InvalidRequest: a field is out of bounds.
            NoCapacity: too many advisories live.
            TenantQuota: too many of the tenant's do.
        """
        check_advisory(advisory)
        key = (advisory.tenant, advisory.session_id)
        arrives_at_ns, expires_at_ns = 0, now_ns + self._limits.ttl_ns
        if advisory.expected_arrival is not None:
            arrives_at_ns = now_ns + int(advisory.expected_arrival * SECOND_NS)
            expires_at_ns = arrives_at_ns + self._limits.slack_ns
        record = self._live.get(key)
        if record is None:
            self._check_room(advisory.tenant)
            record = Record(
                key,
                now_ns,
                expires_at_ns,
                advisory.model_id,
                advisory.priority,
                advisory.adapter,
                arrives_at_ns,
            )
            self._live[key] = record
            self._num_of[advisory.tenant] += 1
            self._over.pop(key, None)
            self._out.append(Count("submitted"))
        else:
            self._merge(record, advisory, arrives_at_ns, expires_at_ns, now_ns)
        record.kv_at = worth_keeping(advisory.kv_at) or record.kv_at
        is_unplaced = record.state == "expected" and now_ns >= record.ask_at_ns
        if not record.is_asking and (is_unplaced or not record.is_told):
            self._ask(record, now_ns)
        self._schedule(record)
        return record, self._take_effects()

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
            self._out.append(Drop(key))
            self._finish(record, "invalidated", now_ns)
        return record, self._take_effects()

    def on_turn_arrived(self, arrived: TurnArrived, now_ns: int) -> list[Effect]:
        """A session's turn was placed. `reserved` proves a place even when the scheduler's answer
        is still on its way.
        """
        record = self._live.get((arrived.tenant, arrived.session_id))
        if record is None:
            self._out.append(Count("missed"))
            return self._announce(self._agents.on_arrived(arrived, now_ns), now_ns)
        if not arrived.reserved:  # whatever is reserved still, is of no use any more
            self._out.append(Drop(record.wire_key))
        in_time = arrived.reserved or record.state == "placed"
        record.worker_id = arrived.worker_id
        self._finish(record, "used" if in_time else "late", now_ns)
        return self._announce(self._agents.on_arrived(arrived, now_ns), now_ns)

    def on_agent_turn_left(self, left: AgentTurnLeft, now_ns: int) -> list[Effect]:
        """An agent's turn is over."""
        return self._announce(self._agents.on_left(left, now_ns), now_ns)

    def on_wake(self, now_ns: int) -> list[Effect]:
        """The instant asked for with `WakeAt` has come."""
        self._wake_at_ns = None
        while self._due and self._due[0][0] <= now_ns:
            at_ns, _, record = heappop(self._due)
            if record.due_at_ns == at_ns:
                record.due_at_ns = None
                self._look_at(record, now_ns)
        return self._take_effects()

    def _announce(self, advisories: Iterable[Advisory], now_ns: int) -> list[Effect]:
        """Turns that follow an agent's are expected as if their clients had announced them."""
        effects = self._take_effects()
        for advisory in advisories:
            with suppress(NoCapacity, TenantQuota):
                effects += self.on_submit(advisory, now_ns)[1]
        return effects

    def _merge(
        self,
        record: Record,
        advisory: Advisory,
        arrives_at_ns: int,
        expires_at_ns: int,
        now_ns: int,
    ) -> None:
        record.num_merged += 1
        if record.arrives_at_ns > now_ns:  # else it did not come then: the new word counts
            arrives_at_ns = min(record.arrives_at_ns, arrives_at_ns)
        record.arrives_at_ns = arrives_at_ns
        record.priority = max(record.priority, advisory.priority)
        record.expires_at_ns = max(record.expires_at_ns, expires_at_ns)
        if advisory.model_id is not None:
            record.model_id, record.adapter = advisory.model_id, advisory.adapter
        self._out.append(Count("merged"))

    def _ask(self, record: Record, now_ns: int) -> None:
        tenant, session_id = record.key
        message = ExpectSession(
            session_id=session_id,
            tenant=tenant,
            model_id=record.model_id,
            priority=record.priority,
            expires_in_ns=record.expires_at_ns - now_ns,
            adapter=record.adapter,
            arrives_in_ns=max(record.arrives_at_ns - now_ns, 0),
            kv_at=record.kv_at,
        )
        record.is_asking = True
        record.told_model_id, record.told_adapter = record.model_id, record.adapter
        record.told_priority = record.priority
        record.told_expires_at_ns = record.expires_at_ns
        record.told_arrives_at_ns = record.arrives_at_ns
        self._out.append(Expect(message))

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

    def _check_room(self, tenant: TenantId) -> None:
        limits = self._limits
        if 0 < limits.tenant_advisories_max <= self._num_of[tenant]:
            raise TenantQuota(
                f"this tenant has too many advisories live: {limits.tenant_advisories_max}"
            )
        if len(self._live) >= limits.advisories_max:
            raise NoCapacity("too many advisories are live")

    def _wants_to_ask(self, record: Record) -> bool:
        """Whether it has no place, or one that ends before its expiry."""
        if record.is_asking:
            return False
        return record.state == "expected" or record.told_expires_at_ns < record.expires_at_ns

    def _finish(
        self,
        record: Record,
        state: Literal["used", "late", "expired", "invalidated"],
        now_ns: int,
    ) -> None:
        del self._live[record.key]
        tenant = record.key[0]
        self._num_of[tenant] -= 1
        if not self._num_of[tenant]:
            del self._num_of[tenant]
        record.state = state
        record.over_at_ns = now_ns
        self._over[record.key] = record
        if len(self._over) > self._limits.advisories_max:
            self._over.popitem(last=False)
        self._out.append(Count(state))
        self._schedule(record)

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
        if next_at_ns is not None and (self._wake_at_ns is None or next_at_ns < self._wake_at_ns):
            self._wake_at_ns = next_at_ns
            self._out.append(WakeAt(next_at_ns))
        effects = self._out.copy()
        self._out.clear()
        return effects
