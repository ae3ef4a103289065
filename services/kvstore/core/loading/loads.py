"""What is being loaded into the arenas: from which source, in which order, and by when."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.kvstore.core.base.effects import Effect, LoadOutcome, PageReads, ReadPages
from services.kvstore.core.base.store_limits import Counts, Limits
from services.kvstore.core.loading.read_queue import ReadQueue
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.backlog import NS_PER_S
from services.kvstore.core.tiers.source import Source
from services.kvstore.core.tiers.tiers import Tiers
from shared.ids import HostId
from shared.locations import OBJECTS
from shared.wire.urgency import kind_of

SOURCES_MAX = 256  # hosts whose links are remembered


@dataclass(frozen=True, slots=True)
class Coming:
    """What a stage waits for.

    Attributes:
        num_pages: of all layers, from all sources.
        ready_in_ns: for each layer, when the last of its pages will probably be there, from now;
            empty: all are.
        bytes_per_s: at which they come, each source giving its own at once; 0: none has to.
    """

    num_pages: int
    ready_in_ns: list[int]
    bytes_per_s: float


class Loads:
    """A queue for each source.

    Args:
        arenas: by page size; may grow.

    Attributes:
        disk: this host's.
    """

    def __init__(
        self, limits: Limits, tiers: Tiers, arenas: Mapping[int, ArenaTier], counts: Counts
    ) -> None:
        self._limits = limits
        self._tiers = tiers
        self._arenas = arenas
        self._counts = counts
        self.disk = Source()
        self._queues: dict[Source, ReadQueue] = {}
        self._peers: dict[HostId, Source] = {}
        self._add(self.disk)

    def peer(self, host_id: HostId) -> Source:
        """Another host as a source."""
        if (source := self._peers.get(host_id)) is None:
            if len(self._peers) >= SOURCES_MAX:
                self._forget_one()
            source = self._peers[host_id] = Source(host_id)
            self._add(source)
        return source

    @property
    def is_loading(self) -> bool:
        """Whether anything was asked for and has not come."""
        return any(source.num_batches for source in self._queues)

    @property
    def is_reading(self) -> bool:
        """Whether pages come from a disk: this host's or another's. Loads from the object
        store do not delay what is written here.
        """
        return any(each.num_batches for each in self._queues if each.host_id != OBJECTS)

    @property
    def num_bytes_waiting(self) -> int:
        """That have not come yet."""
        return sum(source.backlog.num_bytes for source in self._queues)

    @property
    def peer_speeds(self) -> dict[HostId, float]:
        """Bytes a second from other hosts, as far as they were measured."""
        return {
            host_id: source.speed.bytes_per_s
            for host_id, source in self._peers.items()
            if source.speed.is_measured
        }

    def queue(
        self, blocks: list[ArenaBlock], filled: list[tuple[ArenaBlock, list[int]]], priority: int
    ) -> Coming:
        """Queue what has no bytes yet, and move forward what another stage queued already."""
        by_source = queue_loads(self._queues, blocks, filled, priority)
        ready_in_ns = [0] * blocks[0].num_layers
        for source, coming in by_source.items():
            for layer, in_ns in enumerate(promise(source, coming, priority)):
                ready_in_ns[layer] = max(ready_in_ns[layer], in_ns)
        num_pages = sum(map(sum, by_source.values()))
        page_bytes = blocks[0].page_bytes
        longest_ns = max(
            (source.speed.ns(sum(coming) * page_bytes) for source, coming in by_source.items()),
            default=0,
        )
        bytes_per_s = num_pages * page_bytes * NS_PER_S / longest_ns if longest_ns else 0.0
        return Coming(num_pages, ready_in_ns if num_pages else [], bytes_per_s)

    def send(self, effects: list[Effect]) -> None:
        """Keep every source busy."""
        for source, queue in self._queues.items():
            while source.num_batches < self._limits.load_batches_max:
                reads = queue.pop_batch(source.batch_bytes(self._limits.load_bytes_max))
                if not reads:
                    break
                source.num_batches += 1
                effects.append(ReadPages(reads, source.host_id))

    def end_batch(
        self,
        source: Source,
        results: list[tuple[PageReads, list[LoadOutcome]]],
        duration_ns: int,
        effects: list[Effect],
    ) -> set[LoadOutcome]:
        """A batch came, page by page, in so long a time; every outcome that was among them.

        A block with a page that is gone or damaged is forgotten; a page that was not read fails
        for those who wait for it, and says nothing of the block.
        """
        source.num_batches -= 1
        num_bytes_good = 0
        every: set[LoadOutcome] = set()
        for reads, outcomes in results:
            arena, layer = self._arenas[reads.page_bytes], reads.layer
            holding = arena.holding
            blocks = [holding[block_id] for block_id in reads.block_ids]
            for block in blocks:
                block.in_flight.remove(layer)
            num_good = outcomes.count(LoadOutcome.READY)
            if num_good == len(blocks):  # a set of all outcomes takes longer than all the rest
                every.add(LoadOutcome.READY)
            else:
                every.update(outcomes)
                for block, outcome in zip(blocks, outcomes, strict=True):
                    if outcome is not LoadOutcome.READY:
                        self._miss(arena, block, layer, outcome, effects)
            self._counts.num_pages_loaded += num_good
            self._counts.num_pages_fetched += num_good * (source.host_id is not None)
            self._counts.num_pages_from_objects += num_good * (source.host_id == OBJECTS)
            num_bytes_good += num_good * reads.page_bytes
            source.backlog.num_bytes_read -= len(outcomes) * reads.page_bytes
            arena.settle(blocks, effects)
        if source.host_id is None or LoadOutcome.FAILED not in every:  # a wait is no speed
            source.speed.on_read(num_bytes_good, duration_ns)
        return every

    def _miss(
        self,
        arena: ArenaTier,
        block: ArenaBlock,
        layer: int,
        outcome: LoadOutcome,
        effects: list[Effect],
    ) -> None:
        if outcome is LoadOutcome.FAILED:
            self._counts.num_pages_unread += 1
            arena.drop_page(block, layer, effects)
        else:
            self._counts.num_pages_corrupt += outcome is LoadOutcome.CORRUPT
            if block.is_alive:
                self._tiers.forget(block.key, effects)

    def take_waiting(self, source: Source) -> list[ArenaBlock]:
        """Blocks that wait for it, in whole or in part: it gives nothing any more."""
        return self._queues[source].take_all()

    def _add(self, source: Source) -> None:
        self._queues[source] = ReadQueue(source)

    def _forget_one(self) -> None:
        """The longest known of those that no load waits for."""
        for host_id, source in self._peers.items():
            if not source.num_batches and not source.backlog.num_bytes:
                del self._peers[host_id], self._queues[source]
                return


def promise(source: Source, coming: list[int], priority: int) -> list[int]:
    """When so many pages of each layer will be there, that were queued last among those of their
    urgency: ns from now; empty if nothing is to come.
    """
    if not any(coming):
        return []
    ahead = source.backlog.ahead(kind_of(priority), len(coming))
    return [
        source.speed.ns(num_bytes) if num_pages else 0
        for num_pages, num_bytes in zip(coming, ahead, strict=True)
    ]


def queue_loads(
    queues: dict[Source, ReadQueue],
    blocks: list[ArenaBlock],
    filled: list[tuple[ArenaBlock, list[int]]],
    priority: int,
) -> dict[Source, list[int]]:
    """Queue what of `filled` has no bytes yet, and move forward what was queued before.

    Returns:
        For each source and layer, how many pages of `blocks` have yet to come.
    """
    kind = kind_of(priority)
    num_layers = blocks[0].num_layers
    by_source: dict[Source, list[list[ArenaBlock]]] = {}

    def layers_of(block: ArenaBlock) -> list[list[ArenaBlock]]:
        if (by_layer := by_source.get(block.source)) is None:
            by_layer = by_source[block.source] = [[] for _ in range(num_layers)]
        return by_layer

    for block in blocks:
        if not block.queued:
            continue
        by_layer, backlog = layers_of(block), block.source.backlog
        for layer in block.queued:
            by_layer[layer].append(block)
        if kind < block.kind:
            backlog.add_each(block.kind, block.queued, -block.page_bytes)
            backlog.add_each(kind, block.queued, block.page_bytes)
            block.kind = kind
    for block, layers in filled:
        by_layer, backlog = layers_of(block), block.source.backlog
        if not block.queued:
            block.kind = kind
        block.queued.update(layers)
        backlog.add_each(block.kind, layers, block.page_bytes)
        for layer in layers:
            by_layer[layer].append(block)
    for source, by_layer in by_source.items():
        queues[source].push(by_layer, priority)
    num_coming = {source: list(map(len, by_layer)) for source, by_layer in by_source.items()}
    for block in blocks:
        if block.in_flight:
            of_source = num_coming.setdefault(block.source, [0] * num_layers)
            for layer in block.in_flight:
                of_source[layer] += 1
    return num_coming
