"""What tiers find together over many turns, under the policy that predicts: no less in total than
the largest of them alone under the same policy, and no less than that by last use.

Turn by turn that does not hold, as it does by last use (`test_tier_sizes`): other blocks go first.
"""

from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from tests.unit.kvstore.core.test_tier_sizes import NUM_BLOCKS, ROOM, Alone, Tiers

NUM_SESSIONS = 12
NUM_TURNS = 300
SECOND_NS = 1_000_000_000
PAUSE_S_MAX = 20  # between turns
ACCESS = ["cyclic", "random", "zipf", "growing"]
# Where no session is likelier to return than another one, chance decides, either way.
LEAST = 0.88  # of what the other finds: the noise of one trace of a few hundred turns


def turns(name: str, num_sessions: int = NUM_SESSIONS) -> Iterator[tuple[int, int, int]]:
    """Session, blocks, and nanoseconds since the turn before. Of those that grow, half are over
    before they have all their blocks, and a new one comes for each that is over."""
    random, sessions = Random(name), list(range(num_sessions))
    weights = [1 / (rank + 1) ** 1.2 if name == "zipf" else 1.0 for rank in sessions]
    sizes = [0 if name == "growing" else NUM_BLOCKS] * num_sessions
    for number in range(NUM_TURNS):
        at = number % num_sessions if name == "cyclic" else random.choices(sessions, weights)[0]
        if name == "growing":
            at = random.choice(sessions[-num_sessions // 2 :])
            sizes[at] += 1
        yield at, sizes[at], random.randint(1, PAUSE_S_MAX) * SECOND_NS
        if name == "growing" and (sizes[at] == NUM_BLOCKS or random.random() < 0.3):
            sessions.remove(at)
            sessions.append(len(sizes))
            sizes.append(0)


def found_by(tiers: Tiers, name: str, num_sessions: int = NUM_SESSIONS) -> int:
    """Blocks, over all turns."""
    num_found = 0
    for session, num_blocks, pause_ns in turns(name, num_sessions):
        tiers.now_ns += pause_ns
        num_found += tiers.turn(session, num_blocks)
    tiers.check_pages_conserved()
    return num_found


@cache
def found_alone(size: int, name: str) -> int:
    return found_by(Tiers(size, 0, eviction="predicted"), name)


def found_by_use(size: int, name: str) -> int:
    alone = Alone(size)
    return sum(alone.turn(session, num_blocks) for session, num_blocks, _ in turns(name))


def finds_as_much(num_found: int, size: int, name: str) -> None:
    alone, by_use = found_alone(size, name), found_by_use(size, name)
    assert num_found >= LEAST * alone, f"alone, the largest finds {alone}"
    assert num_found >= LEAST * by_use, f"by last use, it finds {by_use}"


SIZES = [(4, 1), (4, 3), (4, 4), (3, 4), (1, 4)]  # of sessions, in arena and disk


@pytest.mark.parametrize("name", ACCESS)
@pytest.mark.parametrize(("arena", "disk"), SIZES)
def test_arena_and_disk(arena: int, disk: int, name: str) -> None:
    tiers = Tiers(arena * ROOM, disk * ROOM, eviction="predicted")
    finds_as_much(found_by(tiers, name), max(arena, disk) * ROOM, name)


@pytest.mark.parametrize("name", ACCESS)
@pytest.mark.parametrize(
    ("arena", "disk", "objects"),
    [(1, 2, 4), (2, 1, 4), (1, 4, 2), (4, 1, 2), (2, 4, 1), (4, 2, 1), (3, 3, 3)],
)
def test_with_an_object_store_too(arena: int, disk: int, objects: int, name: str) -> None:
    """It goes by last use itself: where it is the largest, that is what it gives alone."""
    tiers = Tiers(arena * ROOM, disk * ROOM, objects * ROOM, eviction="predicted")
    size, num_found = max(arena, disk, objects) * ROOM, found_by(tiers, name)
    if objects < max(arena, disk):
        finds_as_much(num_found, size, name)
    assert num_found >= found_by_use(size, name) * LEAST


@pytest.mark.parametrize("name", ["zipf", "growing"])
def test_where_no_worker_tells_when_turns_end(name: str) -> None:
    tiers = Tiers(4 * ROOM, 2 * ROOM, eviction="predicted")
    tiers.reports = False
    finds_as_much(found_by(tiers, name), 4 * ROOM, name)


@pytest.mark.parametrize("name", ACCESS)
@pytest.mark.parametrize(("arena", "disk"), [(2, 1), (1, 2), (2, 0)])
def test_a_renewal_tells_of_every_block_that_no_tier_has_any_more(
    arena: int, disk: int, name: str
) -> None:
    tiers = Tiers(arena * ROOM, disk * ROOM, eviction="predicted")
    tiers.reports = False
    core = tiers.core
    for session, num_blocks, pause_ns in turns(name):
        before = {*core.disk.keys, *tiers.arena.blocks}
        tiers.now_ns += pause_ns
        tiers.turn(session, num_blocks)
        here, gone = {*core.disk.keys, *tiers.arena.blocks}, tiers.renew([], [])
        assert before - here <= set(gone) and not here & set(gone)
        assert tiers.renew([], []) == [], "once"


@pytest.mark.parametrize(("arena", "disk"), [(10, 0), (1, 10), (10, 5), (5, 10)])
def test_a_pass_over_more_than_the_largest_holds_finds_most_of_it(arena: int, disk: int) -> None:
    """By last use it finds nothing."""
    assert not found_by_use(10 * ROOM, "cyclic")
    tiers = Tiers(arena * ROOM, disk * ROOM, eviction="predicted")
    assert found_by(tiers, "cyclic") > NUM_TURNS * NUM_BLOCKS * 10 / NUM_SESSIONS / 2
