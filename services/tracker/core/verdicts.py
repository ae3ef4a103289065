"""What became of advisories, gathered for the frontends that took them."""

from services.tracker.core.records import Record
from shared.ids import FrontendId, TenantId
from shared.messages import HintsEnded, HintVerdict

GATHER_NS = 250_000_000
SENDERS_MAX = 1024  # that are gathered for: of more it is told at once

Client = tuple[TenantId, str]


class Verdicts:
    """Counts by frontend and sender, told some time after the first of them.

    Args:
        tracker_id: of this life of the tracker.
        shard: that it is, if it is divided.
    """

    def __init__(self, tracker_id: str, shard: int = 0) -> None:
        self._tracker_id = tracker_id
        self._shard = shard
        self._counts: dict[FrontendId, dict[Client, list[int]]] = {}
        self._num_senders = 0
        self.tell_at_ns: int | None = None

    def add(self, record: Record, now_ns: int) -> None:
        """The record is over; one that no frontend took is nobody's concern."""
        if record.frontend_id is None:
            return
        of_frontend = self._counts.setdefault(record.frontend_id, {})
        client = record.key[0], record.place
        counts = of_frontend.get(client)
        if counts is None:
            counts = of_frontend[client] = [0, 0, 0]
            self._num_senders += 1
        counts[verdict_of(record)] += 1
        if self.tell_at_ns is None:
            self.tell_at_ns = now_ns + GATHER_NS
        if self._num_senders >= SENDERS_MAX:
            self.tell_at_ns = now_ns

    def due(self, now_ns: int) -> list[tuple[FrontendId, HintsEnded]]:
        """What is to be told now."""
        if self.tell_at_ns is None or now_ns < self.tell_at_ns:
            return []
        told = [
            (
                frontend_id,
                HintsEnded(
                    tracker_id=self._tracker_id,
                    verdicts=[as_verdict(client, counts) for client, counts in clients.items()],
                    shard=self._shard,
                ),
            )
            for frontend_id, clients in self._counts.items()
        ]
        self._counts.clear()
        self._num_senders, self.tell_at_ns = 0, None
        return told


def verdict_of(record: Record) -> int:
    """0: its turn came; 1: it was taken back; 2: its turn did not come in time."""
    if record.state in ("used", "late") or record.came_after_all:
        return 0
    return 1 if record.state == "invalidated" else 2


def as_verdict(client: Client, counts: list[int]) -> HintVerdict:
    """Counts by `verdict_of`, as they are told."""
    used, taken_back, spurious = counts
    return HintVerdict(
        tenant=client[0],
        place=client[1],
        num_used=used,
        num_taken_back=taken_back,
        num_spurious=spurious,
    )
