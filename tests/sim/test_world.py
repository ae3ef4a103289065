"""The whole deployment in virtual time: no fault, and no mixture of them, costs anybody's turn.

A failure names its seed; `./symphony bench chaos --sim --first SEED --seeds 1` tells what it comes
down to.
"""

import time
from typing import get_args

import pytest
from starlette.types import Message

from loadtest.sim.http import Exchange
from loadtest.sim.services.faults import HOW_OFTEN, KINDS, OWN_SHARES
from loadtest.world.campaign import run_campaign, run_seeds, shrink
from loadtest.world.mutant import Mutant
from loadtest.world.mutants import MUTANTS, ROOT
from loadtest.world.run import run_seed
from loadtest.world.world import Options, World
from shared.eviction import EvictionName


@pytest.mark.parametrize(
    ("first", "num_seeds"), [(0, 50), pytest.param(50, 1950, marks=pytest.mark.slow)]
)
def test_every_seed_holds(first: int, num_seeds: int) -> None:
    tally = run_campaign(first, num_seeds)
    assert tally.num_seeds == num_seeds
    assert not tally.failures, f"{len(tally.failures)} seeds fail: {tally.failures}"
    assert set(HOW_OFTEN) == set(tally.faults), "a kind of fault never happened"
    assert tally.num_lost > num_seeds and tally.num_dropped > num_seeds / 10
    num_ends = tally.ends.total() - tally.ends["refused"]  # and asked for again
    assert num_ends > 5 * num_seeds
    assert tally.ends["stop"] + tally.ends["length"] > 0.75 * num_ends
    assert tally.job_ends["done"] > 0.5 * tally.job_ends.total()
    assert tally.met["prefix hit"] > num_seeds and tally.met["eviction"] > num_seeds
    for each in ("preemption", "staging failed", "deferred admission"):
        assert tally.met[each] > num_seeds / 10, each
    for each in ("write-behind skipped", "adapter streamed", "adapter assisted"):
        assert tally.met[each] > 0, each


def test_a_seed_gives_the_same_run_again() -> None:
    first, second = run_seed(11), run_seed(11)
    past, again = first.deployment.timeline, second.deployment.timeline
    assert past.trace == again.trace
    assert past.num_events == again.num_events > 500


def test_a_failure_names_its_seed_and_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frontend that, once it was restarted, says every token twice."""
    send = Exchange._send

    async def stammer(self: Exchange, message: Message) -> None:
        await send(self, message)
        if self._life > 1 and message.get("more_body") and message["body"]:
            await send(self, message)

    monkeypatch.setattr(Exchange, "_send", stammer)
    tally = run_seeds(0, 50, stop_at_first=True)
    ((seed, text),) = tally.failures.items()
    assert " after " in text, "other tokens than any hardware takes"
    with pytest.raises(AssertionError) as caught:
        run_seed(seed)
    assert caught.value.__notes__ == [f"seed {seed}"]
    started_s = time.monotonic()
    shrunk = shrink(seed)
    assert shrunk is not None and time.monotonic() - started_s < 60
    # A seed may need a second fault, to have a turn under way when the frontend is restarted.
    assert "frontend" in shrunk.faults.kinds and len(shrunk.faults.kinds) <= 2
    assert len(shrunk.faults.once) <= 2 < len(World(seed, Options()).faults.once)


def test_every_kind_of_fault_and_of_memory_is_drawn() -> None:
    worlds = [World(seed, Options()) for seed in range(60)]
    assert set().union(*(world.faults.kinds for world in worlds)) == {*KINDS, *OWN_SHARES}
    assert any(world.deployment.twins for world in worlds)
    assert {world.deployment.eviction for world in worlds} == set(get_args(EvictionName))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutants_still_fit(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text()
    assert text.count(mutant.old) == 1 and mutant.old != mutant.new


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 40 and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
