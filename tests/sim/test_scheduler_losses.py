"""Turns that are lost with their workers again and again: those that go on finish, one that kills
its workers ends alone, and takes few along. Workers that are only out of reach condemn no turn.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from loadtest.sim.timeline import MS, SECOND
from tests.sim.turn_peers import STEP_NS, Cluster, Worker

NUM_INNOCENTS = 32
CALM_NS = 120 * SECOND
DEATHS_SHARED_MAX = 2
DEATHS_OF_POISON_MAX = 4  # one alone may come before the first two are proven
OUT_OF_REACH_NS = 3 * SECOND
NUM_SEEDS = 4


@contextmanager
def cluster(seed: int, num_workers: int) -> Iterator[Cluster]:
    """What fails in it names the seed."""
    found = Cluster(seed, num_workers)
    try:
        yield found
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        found.scheduler.dispose()


def begin(found: Cluster, asking_ns: int, faults_until_ns: int) -> None:
    """Innocent turns come within `asking_ns`; then all runs to its end without losses."""
    for _ in range(NUM_INNOCENTS):
        found.ask(found.random.randrange(asking_ns))
    found.timeline.after(faults_until_ns, found.heal)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
def test_a_turn_that_kills_its_workers_takes_few_along(num_workers: int) -> None:
    for seed in range(NUM_SEEDS):
        with cluster(seed, num_workers) as found:
            begin(found, 2 * SECOND, 5 * SECOND)
            found.ask(found.random.randrange(2 * SECOND), is_poison=True)
            found.run_until(CALM_NS)
            for turn_id, turn in found.turns.items():
                wanted = "poisoned" if turn.is_poison else "stop"
                assert turn.ends == [wanted], f"{turn_id} ended {turn.ends}, not {wanted}"
                allowed = DEATHS_OF_POISON_MAX if turn.is_poison else DEATHS_SHARED_MAX
                assert turn.num_deaths <= allowed, f"{turn_id} was at {turn.num_deaths} deaths"
            found.timeline.run_until(found.timeline.now_ns + SECOND, 1 << 62)
            core = found.scheduler.part("turns")
            assert all(worker.isolation.turn is None for worker in core._fleet)


@pytest.mark.parametrize("has_poison", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 8])
def test_no_turn_is_condemned_for_workers_out_of_reach(num_workers: int, has_poison: bool) -> None:
    """What kills workers is a poison turn, or else chance, once."""
    for seed in range(NUM_SEEDS):
        with cluster(seed, num_workers) as found:
            random, after = found.random, found.timeline.after
            begin(found, 12 * SECOND, 16 * SECOND)
            for worker in found.workers:
                for at_s in range(0, 12, 4):
                    cut = partial(found.wires.cut, worker, OUT_OF_REACH_NS)
                    after(at_s * SECOND + random.randrange(SECOND), cut)
            if has_poison:
                found.ask(random.randrange(12 * SECOND), is_poison=True)
            else:
                after(random.randrange(12 * SECOND), random.choice(found.workers).die)
            found.run_until(CALM_NS)
            for turn_id, turn in found.turns.items():
                wanted = {"poisoned"} if turn.is_poison else {"stop"}
                if num_workers == 1 and not turn.is_poison:
                    wanted.add("no_worker")  # it may be away for all of a turn's patience
                assert len(turn.ends) == 1 and turn.ends[0] in wanted, f"{turn_id}: {turn.ends}"


def kill_often(found: Cluster, worker: Worker, num_left: int) -> None:
    """Crash a worker a few tokens after each time that it has the turn."""
    turn = next(iter(found.turns.values()), None)
    has_moved = turn is not None and turn.num_tokens >= 3 * turn.num_deaths + 1
    if has_moved and worker.is_ready and worker.turns:
        worker.die(500 * MS)
        num_left -= 1
    if num_left:
        found.timeline.after(STEP_NS // 3, partial(kill_often, found, worker, num_left))


def test_a_long_turn_outlives_a_hundred_deaths_of_its_worker() -> None:
    with cluster(0, 1) as found:
        found.heal()
        found.ask(0, num_wanted=400)
        kill_often(found, found.workers[0], 100)
        found.run_until(600 * SECOND)
        (turn,) = found.turns.values()
        assert (turn.ends, turn.num_tokens, turn.num_deaths) == (["stop"], 400, 100)
