"""A kvstore of a simulated cluster: the world's, over disks and links that have only bandwidth."""

from collections.abc import Mapping
from functools import partial

from loadtest.cluster.arena import ClusterArena
from loadtest.cluster.links import Link
from loadtest.cluster.plant import Plant
from loadtest.cluster.shells.kv_process import Kvstore
from loadtest.cluster.shells.peering import PeerHost, Peering
from loadtest.sim.redis import RedisServer
from loadtest.sim.services.deployment import SimDeployment
from services.kvstore.core import (
    DeleteBlocks,
    DiskWrite,
    FetchedPages,
    Limits,
    LoadOutcome,
    PageFacts,
    PageReads,
    WriteOutcome,
)
from services.kvstore.core.tiers.arena_block import NO_PAGE
from shared.arena import PageState
from shared.blocks import BlockKey
from shared.ids import HostId

DAY_NS = 86_400_000_000_000
NOTED_NS = 60_000_000_000


class LinkPeering(Peering):
    """Pages go over both hosts' links, which have room for one batch at a time; what the other host
    has on its disk only is read there meanwhile.
    """

    def __init__(
        self, kvstore: "ClusterKvstore", others: Mapping[HostId, PeerHost], page_bytes: int
    ) -> None:
        super().__init__(kvstore, others)
        self._mine = kvstore
        self._page_bytes = page_bytes
        self._connections: dict[HostId, Link] = {}

    def _connection(self, host_id: HostId) -> Link:
        """What one kvstore takes from this other one."""
        if (found := self._connections.get(host_id)) is None:
            found = self._connections[host_id] = Link(self._mine.peer_bytes_per_s)
        return found

    def _begin(self, host_id: HostId) -> None:
        batch = self._waiting[host_id][0]
        other, mine = self._others[host_id], self._mine
        assert isinstance(other, ClusterKvstore)
        now_ns = mine.deployment.timeline.now_ns
        num_bytes = sum(len(reads.pages) for reads in batch) * self._page_bytes
        ends_at_ns = self._connection(host_id).take(num_bytes, now_ns)
        ends_at_ns = max(ends_at_ns, other.egress.take_through(mine.ingress, num_bytes, now_ns))
        if num_below := sum(other.num_below(reads) for reads in batch):
            ends_at_ns = max(ends_at_ns, other.read(num_below * self._page_bytes))
        duration_ns = ends_at_ns - now_ns
        mine.later(duration_ns, partial(self._end, host_id, duration_ns))

    def _take(self, host_id: HostId, reads: PageReads) -> FetchedPages:
        other = self._others[host_id]
        assert isinstance(other, ClusterKvstore)
        record = [other.record_of(key) for key in reads.keys]
        outcomes = [LoadOutcome.READY if each else LoadOutcome.MISSING for each in record]
        self._mine.publish(reads, outcomes)
        return FetchedPages(reads, outcomes, record)


class ClusterKvstore(Kvstore):
    """Attributes:
    stored: blocks on its disk.
    ingress, egress: its host's link; `peer_bytes_per_s`: of a connection over it.
    """

    def __init__(
        self, deployment: SimDeployment, redis: RedisServer, host_id: HostId, plant: Plant
    ) -> None:
        super().__init__(deployment, redis, host_id, plant.arena_blocks * plant.num_layers)
        self._plant = plant
        self.stored: dict[BlockKey, PageFacts] = {}
        self.peer_bytes_per_s = plant.peer_bytes_per_s
        self._reader = Link(plant.disk_read_bytes_per_s)
        self._writer = Link(plant.disk_write_bytes_per_s)
        self.ingress, self.egress = Link(plant.link_bytes_per_s), Link(plant.link_bytes_per_s)

    def check(self) -> None:
        """Too dear after every event; at the end all is checked."""

    def check_expired(self) -> None:
        """The same."""

    def limits(self) -> Limits:
        return Limits(
            disk_bytes_max=self._plant.disk_bytes,
            expiry_ns=DAY_NS,
            noted_ns=NOTED_NS,
            eviction=self.deployment.eviction,
        )

    def new_arena(self) -> ClusterArena:
        return ClusterArena(self._num_pages)

    def new_peering(self) -> Peering:
        return LinkPeering(self, self.others, self._plant.page_bytes)

    def record_of(self, key: BlockKey) -> PageFacts | None:
        """What goes with a page of this block; None: it is not here."""
        if (record := self.stored.get(key)) is not None:
            return record
        if (write := self.core.find_written(key)) is not None:
            return _record_of(write)
        return None

    def num_below(self, reads: PageReads) -> int:
        """Pages of these that are not in the arena here."""
        blocks = self.core.arenas[reads.page_bytes].blocks
        return sum(
            (block := blocks.get(key)) is None or block.pages[reads.layer] == NO_PAGE
            for key in reads.keys
        )

    def read(self, num_bytes: int) -> int:
        """When so much is read from the disk, behind all that is asked of it."""
        return self._reader.take(num_bytes, self.deployment.timeline.now_ns)

    def publish(self, reads: PageReads, outcomes: list[LoadOutcome]) -> None:
        """The words of pages that came, or did not."""
        if all(outcome is LoadOutcome.READY for outcome in outcomes):
            self.arena.set_words(reads.pages, reads.generations, PageState.READY)
            return
        for page, generation, outcome in zip(reads.pages, reads.generations, outcomes, strict=True):
            state = PageState.READY if outcome is LoadOutcome.READY else PageState.BAD
            self.arena.set_words([page], [generation], state)

    def on_fetched(self, host_id: HostId, pages: list[FetchedPages], duration_ns: int) -> None:
        self._perform(self.core.on_fetched(host_id, pages, duration_ns, self.now_ns))

    # The disk.

    def _begin_read(self) -> None:
        num_pages = sum(len(reads.pages) for reads in self._reads[0])
        read_at_ns = self.read(num_pages * self._plant.page_bytes)
        duration_ns = read_at_ns - self.deployment.timeline.now_ns
        self.later(duration_ns, partial(self._end_read, duration_ns))

    def _end_read(self, duration_ns: int) -> None:
        results = []
        for reads in self._reads.popleft():
            outcomes = [
                LoadOutcome.READY if key in self.stored else LoadOutcome.MISSING
                for key in reads.keys
            ]
            self.publish(reads, outcomes)
            results.append((reads, outcomes))
        if self._reads:
            self._begin_read()
        self._perform(self.core.on_loaded(results, duration_ns, self.now_ns))

    def _begin_write(self) -> None:
        """All that waits, in one go."""
        num_blocks = sum(isinstance(order, DiskWrite) for order in self._orders)
        num_bytes = num_blocks * self._plant.page_bytes * self._plant.num_layers
        now_ns = self.deployment.timeline.now_ns
        delay_ns = self._writer.take(num_bytes, now_ns) - now_ns
        self.later(delay_ns, partial(self._end_writes, len(self._orders)))

    def _end_writes(self, num_orders: int) -> None:
        results = []
        for _ in range(num_orders):
            order = self._orders.popleft()
            match order:
                case DiskWrite():
                    self.stored[order.key] = _record_of(order)
                    num_bytes = self._plant.page_bytes * self._plant.num_layers
                    results.append((order.block_id, WriteOutcome.STORED, num_bytes))
                case DeleteBlocks(blocks):
                    for key, _ in blocks:
                        self.stored.pop(key, None)
                case _:
                    self.stored.clear()
        if self._orders:
            self._begin_write()
        if results:
            self._perform(self.core.on_written(results, self.now_ns))


def _record_of(write: DiskWrite) -> PageFacts:
    return PageFacts(write.parent, list(write.tokens), len(write.pages), 1, write.owner)
