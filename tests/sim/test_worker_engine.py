"""Seeded simulation of the engine core: small pools, a faulty kvstore, impatient clients.

A failure names its seed; `run_seed(seed).trace` shows what happened.
"""

import pytest

from tests.sim.engine_traffic import run_world
from tests.sim.engine_world import EngineWorld

NUM_SEEDS = 150
SEEDS_PER_TEST = 10


def run_seed(seed: int) -> EngineWorld:
    """Run a seed's world to its end."""
    return run_world(EngineWorld(seed), seed)


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, SEEDS_PER_TEST))
def test_all_invariants_hold(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        run_seed(seed)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run_seed(7).trace == run_seed(7).trace


def test_the_worlds_meet_what_they_are_for() -> None:
    worlds = [run_seed(seed) for seed in range(40)]
    assert sum(world.num_carried for world in worlds) > 1000
    assert sum(world.core.planner.num_preemptions for world in worlds) > 10
    assert sum(world.core.stager.num_failures for world in worlds) > 10
    assert sum(world.core.pool.num_evicted for world in worlds) > 100
    assert sum(world.core.history.num_prefix_hits for world in worlds) > 100
    assert sum(world.core.writeback.num_given_up for world in worlds) > 10
    assert sum(world.num_private for world in worlds) > 5
    assert sum(len(world.outgrown) for world in worlds) > 20
    assert sum(world.num_tails for world in worlds) > 40
