"""What earlier advisories teach about new ones: whether and when their turns come, and which sender
may send more.

A restart loses all of it, which is safe: unknown senders are trusted.
"""

from dataclasses import replace

from services.tracker.core.leads import Leads
from services.tracker.core.outcomes import Outcomes
from services.tracker.core.records import Origin, Record
from services.tracker.core.tracker_limits import SECOND_NS, Limits
from services.tracker.core.verdicts import as_verdict, payer_of, verdict_of
from shared.ids import SessionId, TenantId
from shared.locations import worth_keeping
from shared.wire.hint_accounts import HintAccounts, HintSender, session_name
from shared.wire.messages import Advisory, HintRate, HintStatus, TurnArrived

MS_NS = 1_000_000
TTL_FACTOR = 10  # learned lead times change the default expiry by at most this factor
DIRECT = "nats"  # the sender of advisories that no frontend took


class Learned:
    """Estimates advisories from the outcomes of earlier ones."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._outcomes = Outcomes()
        self._leads = Leads()
        self._accounts = HintAccounts(limits.accounts)

    def charged(self, advisory: Advisory, now_ns: int) -> Advisory:
        """Charge the sender of an advisory that was sent by NATS directly.

        Raises:
            HintsThrottled: too many of those had no turn.
        """
        sender = _direct(advisory.tenant, advisory.session_id)
        return replace(advisory, place=DIRECT, payer=self._accounts.take(sender, now_ns))

    def on_turn(self, arrived: TurnArrived, now_ns: int) -> None:
        """A session's turn arrived: it may announce others."""
        if arrived.part != "workflow":
            name = session_name(arrived.tenant, arrived.session_id)
            self._accounts.on_turn(arrived.tenant, name, now_ns)

    def begin(self, advisory: Advisory, now_ns: int, foreseen: float | None = None) -> Record:
        """The record of an advisory whose session has no live one.

        Args:
            foreseen: the probability of a turn that this tracker foresees, without an advisory of a
                client. Its outcome teaches nothing about clients' advisories.
        """
        record = Record(
            (advisory.tenant, advisory.session_id),
            now_ns,
            now_ns,
            advisory.model_id,
            advisory.priority,
            advisory.adapter,
            is_acted_on=False,
            origin=Origin(
                agent=advisory.agent,
                workflow_id=advisory.workflow_id,
                frontend_id=advisory.frontend_id,
                place=advisory.place,
                payer=advisory.payer,
                is_dated=advisory.expected_arrival is not None,
                has_kv=bool(worth_keeping(advisory.kv_at)),
                is_own=foreseen is not None,
            ),
        )
        record.arrives_at_ns, record.expires_at_ns = self._times(record, advisory, now_ns)
        self._weigh(record, now_ns, foreseen)
        return record

    def merge(
        self, record: Record, advisory: Advisory, now_ns: int, foreseen: float | None = None
    ) -> None:
        """A session's turn is announced again. A client's advisory overrides what the tracker
        foresees.
        """
        if foreseen is not None and not record.origin.is_own:
            _, expires_at_ns = self._times(record, advisory, now_ns)
            record.expires_at_ns = max(record.expires_at_ns, expires_at_ns)
            record.is_acted_on = record.is_acted_on or self._is_likely(foreseen)
            return
        if foreseen is None and record.origin.is_own:
            self._take_over(record, advisory, now_ns)
            return
        if foreseen is None:
            record.num_merged += 1
            if advisory.frontend_id is None and advisory.place == DIRECT:
                sender = _direct(advisory.tenant, advisory.session_id)
                self._accounts.on_refund(sender, advisory.payer)
        record.origin.agent = advisory.agent or record.origin.agent
        record.origin.workflow_id = advisory.workflow_id or record.origin.workflow_id
        arrives_at_ns, expires_at_ns = self._times(record, advisory, now_ns)
        is_dated = advisory.expected_arrival is not None
        if is_dated or record.origin.is_dated:
            if not is_dated:
                arrives_at_ns = 0
            if record.arrives_at_ns > now_ns:  # else it did not come: use the new time
                arrives_at_ns = min(record.arrives_at_ns, arrives_at_ns)
            record.arrives_at_ns = arrives_at_ns
        record.origin.is_dated = record.origin.is_dated or is_dated
        record.priority = max(record.priority, advisory.priority)
        record.expires_at_ns = max(record.expires_at_ns, expires_at_ns)
        if advisory.model_id is not None:
            record.model_id, record.adapter = advisory.model_id, advisory.adapter
        self._weigh(record, now_ns, foreseen)

    def _take_over(self, record: Record, advisory: Advisory, now_ns: int) -> None:
        """A client announces a turn that only the tracker foresaw: its advisory counts as first."""
        client = self.begin(advisory, now_ns)
        record.origin = replace(client.origin, sender=record.origin.sender)
        record.created_at_ns = now_ns
        record.priority, record.arrives_at_ns = advisory.priority, client.arrives_at_ns
        record.expires_at_ns = max(record.expires_at_ns, client.expires_at_ns)
        if advisory.model_id is not None:
            record.model_id, record.adapter = advisory.model_id, advisory.adapter
        record.chance = client.chance
        record.is_acted_on = record.is_acted_on or client.is_acted_on

    def on_end(self, record: Record, now_ns: int) -> None:
        """Learn an outcome, also of advisories that were not acted on: so senders can recover."""
        if record.origin.is_own:
            return
        verdict = verdict_of(record)
        self._outcomes.learn(record.source, now_ns, is_used=verdict == 0)
        if record.origin.place == DIRECT and record.origin.frontend_id is None:
            counts = [0, 0, 0]
            counts[verdict] = 1
            self._accounts.on_verdicts([as_verdict(payer_of(record), counts)])

    def on_lead(self, record: Record, now_ns: int) -> None:
        """Learn the lead time of an advisory whose turn has arrived."""
        if not record.origin.is_dated and not record.origin.is_own:
            self._leads.learn(record.source, (now_ns - record.created_at_ns) / SECOND_NS, now_ns)

    def status(self, num_live: int, now_ns: int) -> HintStatus:
        """What `symphony status` shows."""
        return HintStatus(
            num_live=num_live,
            rates=[
                HintRate(tenant=tenant, hits=round(hits, 3), num_hints=round(num, 1))
                for tenant, hits, num in self._outcomes.rates(now_ns)
            ],
            throttled=self._accounts.throttled(now_ns),
        )

    def _weigh(self, record: Record, now_ns: int, foreseen: float | None) -> None:
        learned = self._outcomes.chance(record.source, now_ns) if foreseen is None else foreseen
        record.chance = learned
        record.is_acted_on = record.is_acted_on or self._is_likely(learned)

    def _is_likely(self, chance: float) -> bool:
        return chance >= self._limits.act_chance_min

    def _times(self, record: Record, advisory: Advisory, now_ns: int) -> tuple[int, int]:
        """When the turn is expected (0: unknown), and when the advisory expires."""
        limits = self._limits
        if advisory.expected_arrival is not None:
            arrives_at_ns = now_ns + int(advisory.expected_arrival * SECOND_NS)
            expires_at_ns = arrives_at_ns + limits.slack_ns
        elif (lead := self._leads.expected(record.source, now_ns)) is not None:
            early_ns, late_ns = int(lead.early_s * SECOND_NS), int(lead.late_s * SECOND_NS)
            arrives_at_ns = now_ns + early_ns if early_ns >= SECOND_NS else 0
            shortest_ns, longest_ns = limits.ttl_ns // TTL_FACTOR, limits.ttl_ns * TTL_FACTOR
            expires_at_ns = now_ns + min(max(late_ns, shortest_ns), longest_ns)
        else:
            arrives_at_ns, expires_at_ns = 0, now_ns + limits.ttl_ns
        if advisory.ttl_ms is not None:
            expires_at_ns = now_ns + advisory.ttl_ms * MS_NS
        return arrives_at_ns, expires_at_ns


def _direct(tenant: TenantId, session_id: SessionId) -> HintSender:
    return HintSender(tenant, DIRECT, session_name(tenant, session_id))
