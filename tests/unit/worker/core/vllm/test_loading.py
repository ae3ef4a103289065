"""A rank's loads, and what is reported to vLLM of them."""

from random import Random

from services.worker.core.vllm.connector import LoadOrder
from services.worker.core.vllm.loading import RankLoads, RankShape
from services.worker.core.vllm.stores import StoreOrder

LAYERS, BLOCKS = 3, 10


def test_a_rank_copies_its_own_pages() -> None:
    shape = RankShape(rank=1, num_ranks=2, num_layers=2, num_blocks=BLOCKS)
    order = LoadOrder(
        request_id="a", epoch=3, blocks=[4, 7], ready_at_ns=5,
        pages=[[10, 11], [20, 21], [30, 31], [40, 41]],
        generations=[[1, 2], [3, 4], [5, 6], [7, 8]],
    )  # fmt: skip
    loads = shape.loads(order)
    assert loads.arena_pages == [20, 21, 40, 41] and loads.generations == [3, 4, 7, 8]
    assert loads.pool_pages == [4, 7, 14, 17] and (loads.epoch, loads.ready_at_ns) == (3, 5)
    store = StoreOrder(epoch=3, number=9, block=7, arena_pages=[1, 2, 3, 4], num_tokens=64)
    write = shape.write(store, 64)
    assert write.pool_pages == [7, 17] and write.arena_pages == [2, 4] and not write.is_partial
    tail = StoreOrder(epoch=3, number=9, block=7, arena_pages=[1, 2, 3, 4], num_tokens=5)
    assert shape.write(tail, 64).is_partial and len(shape.write(tail, 64).tokens) == 5


def test_a_load_is_over_once_when_all_its_pages_are_and_not_before() -> None:
    for seed in range(50):
        random = Random(seed)
        loads = RankLoads(LAYERS, BLOCKS)
        blocks = {"a": [1, 2, 3], "b": [4], "c": [5, 6]}
        bad_pages = {page for page in range(LAYERS * BLOCKS) if random.random() < 0.2}
        for name, of_name in blocks.items():
            loads.start(name, of_name)
        left = [
            layer * BLOCKS + block
            for of_name in blocks.values()
            for block in of_name
            for layer in range(LAYERS)
        ]
        random.shuffle(left)
        seen: set[str] = set()
        while left:
            count = random.randrange(1, 5)
            some, left = left[:count], left[count:]
            loads.on_moved(
                [page for page in some if page not in bad_pages],
                [page for page in some if page in bad_pages],
            )
            seen |= check(loads, blocks, left, bad_pages, seen)
        assert seen == set(blocks)


def check(
    loads: RankLoads,
    blocks: dict[str, list[int]],
    left: list[int],
    bad_pages: set[int],
    seen: set[str],
) -> set[str]:
    over, bad = loads.take()
    assert not over & seen, "a load is over twice"
    for name in over:
        pages = {layer * BLOCKS + block for block in blocks[name] for layer in range(LAYERS)}
        assert not pages & set(left)
        expected = {page % BLOCKS for page in pages & bad_pages}
        assert bad & set(blocks[name]) == expected
    assert bad <= {block for name in over for block in blocks[name]}, "of loads that go on"
    return over
