"""The connector in vLLM's scheduler, under whatever vLLM, its ranks and the worker may do."""

from collections import Counter
from random import Random

import pytest

from tests.unit.worker.core.vllm.fake_scheduler import World

NUM_STEPS = 120
WEIGHTS = {
    "schedule": 12, "add": 3, "answer": 6, "store": 6, "load": 6, "abort": 1, "connect": 0.5,
    "lose": 1, "forget": 0.3,
}  # fmt: skip


def run(seed: int, *, has_tails: bool) -> World:
    """A while of anything, and then until all is over."""
    world = World(Random(seed), has_tails=has_tails)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    world.connect()
    for _ in range(NUM_STEPS):
        getattr(world, world.random.choices(names, weights)[0])()
    for _ in range(400):
        if not (world.requests or world.ordered or world.loads):
            break
        for name in ("answer", "load", "store", "schedule"):
            getattr(world, name)()
    world.schedule()
    while world.ordered:
        world.store()
    world.answer()
    return world


@pytest.mark.parametrize("has_tails", [False, True])
def test_whatever_happens_kv_is_right_and_everything_is_given_back(has_tails: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(80):
        world = run(seed, has_tails=has_tails)
        assert not world.requests, (seed, "a request waits for ever")
        assert not any(world.pool.touched), (seed, "a block is held for ever")
        assert world.pool.refs == [1] + [0] * (world.pool.num_blocks - 1)
        assert not world.tickets, (seed, "a ticket is held for ever")
        assert not world.core.num_requests
        for name in ("loaded", "stored", "preempted", "failed", "again"):
            seen[name] += getattr(world, f"num_{name}")
    assert min(seen.values()) > 20, seen
