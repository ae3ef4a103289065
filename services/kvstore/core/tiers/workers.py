"""Open workers, the pages they lease, and the tickets they hold."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from services.kvstore.core.base.events import Open, Renew
from services.kvstore.core.tiers.arena_block import ArenaBlock
from shared.blocks import BlockKey
from shared.errors import NotFound
from shared.ids import TenantId, WorkerId
from shared.owners import OwnerKey

SEQ_WINDOW = 4096  # numbers behind the latest that are remembered
GONE_MAX = 4096  # blocks that a renewal reports as gone: 128 KiB
RETIRED_MAX = 1024  # incarnations remembered: a message is late by seconds, not by so many opens


@dataclass(slots=True)
class Ticket:
    """Blocks pinned by one stage.

    Attributes:
        held_at_ns: when its worker last said that it holds it.
        hinted_by: tenant and session whose turn is only announced; None: a turn waited for it.
    """

    page_bytes: int
    blocks: list[ArenaBlock]
    held_at_ns: int
    hinted_by: tuple[TenantId, OwnerKey] | None = None

    @property
    def num_pages(self) -> int:
        """That it pins."""
        return sum(block.num_layers for block in self.blocks)

    def split(self, num_kept: int) -> "Ticket":
        """Keep the first so many blocks; what it held of the others."""
        rest = replace(self, blocks=self.blocks[num_kept:])
        del self.blocks[num_kept:]
        return rest


@dataclass(frozen=True, slots=True)
class Lease:
    """Why pages are their worker's: one object for all that it is true of.

    Attributes:
        number: of the question that it answered.
        held_at_ns: when the worker was given them, or last said that it has them.
    """

    number: int
    held_at_ns: int


@dataclass(slots=True)
class OpenWorker:
    """One open incarnation of a worker.

    Attributes:
        shapes: number of layers and page size in bytes, by model fingerprint.
        leased: pages it may write to, by page size.
        gone: blocks that left this host since it renewed last, the latest of them.
    """

    worker_id: WorkerId
    incarnation: str
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    leased: dict[int, dict[int, Lease]] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _latest_seq: int = 0
    tickets: dict[int, Ticket] = field(default_factory=dict)
    gone: deque[BlockKey] = field(default_factory=lambda: deque(maxlen=GONE_MAX))

    def is_repeated(self, seq: int) -> bool:
        """Whether this number was seen before, or is too old to know; 0 never is."""
        if seq <= 0:
            return False
        if seq in self._seen or seq <= self._latest_seq - SEQ_WINDOW:
            return True
        self._seen.add(seq)
        self._latest_seq = max(self._latest_seq, seq)
        if len(self._seen) > 2 * SEQ_WINDOW:
            oldest = self._latest_seq - SEQ_WINDOW
            self._seen = {number for number in self._seen if number > oldest}
        return False

    def renew(self, event: Renew, now_ns: int) -> None:
        """It still holds these tickets and leased pages; those that are gone are ignored."""
        for number in event.tickets:
            if (ticket := self.tickets.get(number)) is not None:
                ticket.held_at_ns = now_ns
        leased = self.leased.get(event.page_bytes, {})
        renewed: dict[int, Lease] = {}  # by the question's number
        for page in event.leased:
            if (lease := leased.get(page)) is not None:
                if (held := renewed.get(lease.number)) is None:
                    held = renewed[lease.number] = Lease(lease.number, now_ns)
                leased[page] = held

    def num_layers(self, page_bytes: int) -> int:
        """Pages of the largest of its blocks in such pages; 0: it has none."""
        return max(
            (layers for layers, size in self.shapes.values() if size == page_bytes), default=0
        )

    def lease(self, page_bytes: int, pages: list[int], number: int, now_ns: int) -> None:
        """It may write to these pages: the answer to its question of this number."""
        lease = Lease(number, now_ns)
        self.leased.setdefault(page_bytes, {}).update(dict.fromkeys(pages, lease))

    def meant(self, page_bytes: int, pages: Iterable[int], last_lease: int) -> list[int]:
        """Those of these pages that are leased to it, by leases whose answers it had received, up
        to number `last_lease`. A page that was taken back and leased to it again is not meant.
        """
        leased = self.leased.get(page_bytes, {})
        return [
            page
            for page in pages
            if (lease := leased.get(page)) is not None and lease.number <= last_lease
        ]

    def end_leases(self, page_bytes: int, pages: Iterable[int]) -> None:
        """These pages, all leased to it, are its own no more."""
        leased = self.leased.get(page_bytes, {})
        for page in pages:
            del leased[page]

    def take_forgotten(self, event: Renew, held_until_ns: int) -> list[int]:
        """Take out the pages that it does not name and has not held since then, of leases whose
        answers it has had or will not have: one was lost that brought them, or a message that gave
        them back. A page that it named until just now may be in a commit that is under way.

        By its own word alone, never by its silence: what it still writes to must not be given
        away.
        """
        leased = self.leased.get(event.page_bytes, {})
        named = set(event.leased)
        pages = [
            page
            for page, lease in leased.items()
            if lease.held_at_ns <= held_until_ns
            and lease.number <= event.last_lease
            and page not in named
        ]
        self.end_leases(event.page_bytes, pages)
        return pages


class Workers:
    """Open workers by id; at most one incarnation of each."""

    def __init__(self, first_ticket: int) -> None:
        self._workers: dict[WorkerId, OpenWorker] = {}
        self._ticket_numbers = count(first_ticket)
        self._retired: OrderedDict[tuple[WorkerId, str], None] = OrderedDict()

    def find(self, worker_id: WorkerId) -> OpenWorker | None:
        return self._workers.get(worker_id)

    def get(self, worker_id: WorkerId, incarnation: str) -> OpenWorker:
        """Raises:
        NotFound: `unknown_worker`: it must open first, and hold nothing of what it held.
        """
        worker = self._workers.get(worker_id)
        if worker is None or worker.incarnation != incarnation:
            raise NotFound(f"worker {worker_id} is not open here", "worker_id", "unknown_worker")
        return worker

    def open(self, event: Open) -> None:
        """Register a worker, or one more model of it."""
        worker = self._workers.setdefault(
            event.worker_id, OpenWorker(event.worker_id, event.incarnation)
        )
        assert worker.incarnation == event.incarnation, "the earlier incarnation was closed"
        worker.shapes[event.fingerprint] = (event.num_layers, event.page_bytes)

    def close(self, worker_id: WorkerId, incarnation: str) -> OpenWorker | None:
        """Take a worker out, with everything it holds; None if this incarnation is not open."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.incarnation != incarnation:
            return None
        self._retired[worker_id, incarnation] = None
        if len(self._retired) > RETIRED_MAX:
            self._retired.popitem(last=False)
        return self._workers.pop(worker_id)

    def on_gone(self, key: BlockKey) -> None:
        """No tier of this host has this block any more."""
        for worker in self:
            worker.gone.append(key)

    def is_retired(self, worker_id: WorkerId, incarnation: str) -> bool:
        """Whether this incarnation was open, and is not any more."""
        return (worker_id, incarnation) in self._retired

    def lease_room(self, worker: OpenWorker, page_bytes: int, num_pages: int, share: float) -> int:
        """How many more pages of an arena of `num_pages` may be leased to `worker`.

        An idle worker keeps what it has leased. So each may have its part of `share` of the
        arena only, and never all that is left: a worker that comes later can write, too, one block
        at least.
        """
        num_peers = sum(1 for each in self if each.num_layers(page_bytes))
        part = int(share * num_pages / max(num_peers, 1))
        left = int(share * (num_pages - self.num_leased(page_bytes)))
        own = len(worker.leased.get(page_bytes, ()))
        return max(min(part - own, left), worker.num_layers(page_bytes) - own)

    def num_leased(self, page_bytes: int) -> int:
        """Pages of an arena that workers have leased."""
        return sum(len(each.leased.get(page_bytes, ())) for each in self)

    def add_ticket(self, worker: OpenWorker, ticket: Ticket) -> int:
        """Number of a new ticket."""
        number = next(self._ticket_numbers)
        worker.tickets[number] = ticket
        return number

    def take_expired(self, held_until_ns: int) -> list[Ticket]:
        """Take out the tickets that are not held any more: last renewed then, or before.

        An answer may be lost that brought a ticket, and a message that released one. To take a
        ticket from a worker that does read is safe: it sees by the pages' words what was replaced.
        """
        expired = []
        for worker in self:
            for number, ticket in list(worker.tickets.items()):
                if ticket.held_at_ns <= held_until_ns:
                    expired.append(worker.tickets.pop(number))
        return expired

    def __iter__(self) -> Iterator[OpenWorker]:
        return iter(self._workers.values())
