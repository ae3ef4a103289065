"""Outcomes of advisories, batched for the frontends that took them."""

from services.tracker.core.records import Record
from shared.ids import FrontendId
from shared.wire.hint_accounts import HintSender, session_name
from shared.wire.messages import HintsEnded, HintVerdict

GATHER_NS = 250_000_000
SENDERS_MAX = 1024  # per batch; a full batch is sent at once


class Verdicts:
    """Counts by frontend and sender, sent `GATHER_NS` after the first of them.

    Args:
        tracker_id: of this process.
        shard: number of this shard of the tracker.
    """

    def __init__(self, tracker_id: str, shard: int = 0) -> None:
        self._tracker_id = tracker_id
        self._shard = shard
        self._counts: dict[FrontendId, dict[HintSender, list[int]]] = {}
        self._num_senders = 0
        self.send_at_ns: int | None = None

    def add(self, record: Record, now_ns: int) -> None:
        """Count an ended record, if a frontend took its advisory."""
        if record.origin.frontend_id is None:
            return
        of_frontend = self._counts.setdefault(record.origin.frontend_id, {})
        sender = payer_of(record)
        counts = of_frontend.get(sender)
        if counts is None:
            counts = of_frontend[sender] = [0, 0, 0]
            self._num_senders += 1
        counts[verdict_of(record)] += 1
        if self.send_at_ns is None:
            self.send_at_ns = now_ns + GATHER_NS
        if self._num_senders >= SENDERS_MAX:
            self.send_at_ns = now_ns

    def due(self, now_ns: int) -> list[tuple[FrontendId, HintsEnded]]:
        """The messages to send now."""
        if self.send_at_ns is None or now_ns < self.send_at_ns:
            return []
        messages = [
            (
                frontend_id,
                HintsEnded(
                    tracker_id=self._tracker_id,
                    verdicts=[as_verdict(sender, counts) for sender, counts in senders.items()],
                    shard=self._shard,
                ),
            )
            for frontend_id, senders in self._counts.items()
        ]
        self._counts.clear()
        self._num_senders, self.send_at_ns = 0, None
        return messages


def verdict_of(record: Record) -> int:
    """0: its turn came; 1: it was withdrawn; 2: its turn did not come in time."""
    if record.state in ("used", "late") or record.came_after_expiry:
        return 0
    return 1 if record.state == "invalidated" else 2


def payer_of(record: Record) -> HintSender:
    """Who an outcome counts for: without a session, if that did not pay."""
    tenant, session_id = record.key
    session = session_name(tenant, session_id) if record.origin.payer == "session" else ""
    return HintSender(tenant, record.origin.place, session)


def as_verdict(sender: HintSender, counts: list[int]) -> HintVerdict:
    """The wire message of counts by `verdict_of`."""
    used, taken_back, spurious = counts
    return HintVerdict(
        tenant=sender.tenant,
        place=sender.place,
        session=sender.session,
        num_used=used,
        num_taken_back=taken_back,
        num_spurious=spurious,
    )
