"""The order in which pages are read, beside the obvious one: each page of each question, sorted."""

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from services.kvstore.core.loading.loads import queue_loads
from services.kvstore.core.loading.read_queue import ReadQueue
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.backlog import Backlog
from services.kvstore.core.tiers.source import Source
from shared.blocks import BlockKey
from shared.wire.messages import ADVISORY_PRIORITY
from shared.wire.urgency import DEMAND_PRIORITY, NUM_KINDS, Order, load_order
from tests.unit.kvstore.core.host import each_page

NUM_LAYERS = 3
NUM_BLOCKS = 5
PAGE_BYTES = 10

priorities = st.sampled_from([0, ADVISORY_PRIORITY, ADVISORY_PRIORITY + 1, DEMAND_PRIORITY])
questions = st.tuples(
    st.just("stage"),
    priorities,
    st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=4, unique=True),
)
given_up = st.tuples(st.just("give up"), st.integers(0, NUM_BLOCKS - 1), st.just(None))
batches = st.tuples(st.just("pop"), st.integers(0, 5 * PAGE_BYTES), st.just(None))


def new_block(number: int, source: Source) -> ArenaBlock:
    pages = [number * NUM_LAYERS + layer for layer in range(NUM_LAYERS)]
    generations = [page + 100 for page in pages]
    key = BlockKey(number.to_bytes(16, "big"))
    return ArenaBlock(number, key, PAGE_BYTES, pages, generations, NUM_LAYERS, 0, 0, source)


class PageByPage:
    """An entry for each page of each question."""

    def __init__(self) -> None:
        self.entries: list[tuple[Order, int]] = []
        self.seq = count()
        self.queued: set[tuple[int, int]] = set()  # block and layer
        self.in_flight: set[tuple[int, int]] = set()

    def stage(self, numbers: list[int], priority: int) -> None:
        wanted = [(number, layer) for number in numbers for layer in range(NUM_LAYERS)]
        waiting = [page for page in wanted if page in self.queued]
        for number, layer in waiting + [
            page for page in wanted if page not in self.queued | self.in_flight
        ]:
            order = load_order(priority, layer, next(self.seq))
            self.entries.append((order, number))
            self.queued.add((number, layer))

    def pop(self, bytes_max: int) -> list[tuple[int, int]]:
        batch: list[tuple[int, int]] = []
        self.entries.sort()
        while self.entries and not (batch and (len(batch) + 1) * PAGE_BYTES > bytes_max):
            order, number = self.entries.pop(0)
            if (page := (number, order[1])) in self.queued:
                self.queued.remove(page)
                self.in_flight.add(page)
                batch.append(page)
        return batch


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(questions, given_up, batches), max_size=25))
def test_pages_are_read_in_the_order_of_urgency(
    events: list[tuple[str, int, list[int] | None]],
) -> None:
    source = Source()
    backlog = source.backlog
    queue, obvious = ReadQueue(source), PageByPage()
    blocks = [new_block(number, source) for number in range(NUM_BLOCKS)]
    for what, number, asked in [*events, *[("pop", 10**6, None)] * 2]:
        if what == "stage":
            assert asked is not None
            staged = [blocks[each] for each in asked]
            filled = [
                (block, [n for n in range(NUM_LAYERS) if n not in block.queued | block.in_flight])
                for block in staged
            ]
            obvious.stage(asked, number)
            num_missing = queue_loads({source: queue}, staged, filled, number)
            assert num_missing == {source: [len(asked)] * NUM_LAYERS}
        elif what == "give up":
            for layer in blocks[number].queued:
                backlog.add(blocks[number].kind, layer, -PAGE_BYTES)
            blocks[number].queued.clear()
            obvious.queued -= {(number, layer) for layer in range(NUM_LAYERS)}
        else:
            batch = each_page(queue.pop_batch(number))
            assert [(read.block_id, read.layer) for read in batch] == obvious.pop(number)
            for read in batch:
                assert (read.page, read.generation) == (
                    read.block_id * NUM_LAYERS + read.layer,
                    read.page + 100,
                )
                assert read.layer in blocks[read.block_id].in_flight
        check_backlog(backlog, blocks)
    assert not any(block.queued for block in blocks)


def check_backlog(backlog: Backlog, blocks: list[ArenaBlock]) -> None:
    """It says what is read before the last page of each layer, for each urgency."""
    waiting = [(block.kind, layer) for block in blocks for layer in block.queued]
    for kind in range(NUM_KINDS):
        before = [sum(each <= (kind, layer) for each in waiting) for layer in range(NUM_LAYERS)]
        read = backlog.num_bytes_read
        assert backlog.ahead(kind, NUM_LAYERS) == [read + PAGE_BYTES * num for num in before]
    assert backlog.num_bytes == backlog.num_bytes_read + PAGE_BYTES * len(waiting)
