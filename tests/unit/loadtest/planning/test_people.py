"""People of a plan: histories have the median that was asked for, and nobody's is too long."""

from dataclasses import replace
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.planning.demand import READING_WPM, TYPING_WPM, Demand
from loadtest.planning.people import people
from loadtest.planning.share import GPUS_LEAST, part_of
from loadtest.sim.timeline import SECOND
from loadtest.workloads.people import SPEEDS, load_speeds
from loadtest.workloads.script import Script
from loadtest.workloads.traces import path_of

LASTS_NS = 200 * SECOND


def histories(script: Script) -> list[int]:
    """Tokens that each turn after the one that brings history comes with."""
    known: dict[str, int] = {}
    found = []
    for number, turn in enumerate(script.turns):
        if number:
            found.append(known.get(turn.session, 0))
        told = sum(part.num_tokens for part in turn.parts) + (turn.num_output if number else 0)
        known[turn.session] = known.get(turn.session, 0) + told
    return found


@pytest.mark.parametrize("context", [500, 4000])
def test_the_median_turn_has_the_history_that_was_asked_for(context: int) -> None:
    scripts = people(Demand(users=400, context=context), SECOND, LASTS_NS, seed=3)
    found = [history for script in scripts for history in histories(script)]
    assert median(found) == pytest.approx(context, rel=0.1)


@given(
    context=st.integers(1, 9000),
    reply=st.integers(1, 500),
    tokens_max=st.integers(10_000, 20_000),
    seed=st.integers(0, 9),
)
def test_no_session_outgrows_the_model(
    context: int, reply: int, tokens_max: int, seed: int
) -> None:
    demand = Demand(users=3, context=context, reply=reply, tokens_max=tokens_max)
    if demand.tokens_least > tokens_max:
        return
    for script in people(demand, SECOND, 60 * SECOND, seed):
        lengths: dict[str, int] = {}
        for turn in script.turns:
            told = sum(part.num_tokens for part in turn.parts) + turn.num_output
            lengths[turn.session] = lengths.get(turn.session, 0) + told
        assert max(lengths.values()) <= tokens_max


def test_the_same_seed_is_the_same_people() -> None:
    demand = Demand(users=5, context=1000)
    assert people(demand, SECOND, LASTS_NS, 1) == people(demand, SECOND, LASTS_NS, 1)
    assert people(demand, SECOND, LASTS_NS, 1) != people(demand, SECOND, LASTS_NS, 2)


def test_no_answer_is_longer_than_twice_the_median() -> None:
    scripts = people(Demand(users=300, context=1000, reply=100), SECOND, LASTS_NS, seed=1)
    answers = [turn.num_output for script in scripts for turn in script.turns[1:]]
    assert max(answers) == 200
    assert median(answers) == pytest.approx(100, rel=0.1)


def test_people_wait_as_long_as_is_reckoned_with() -> None:
    demand = Demand(users=200, context=4000)
    scripts = people(demand, SECOND, 10 * LASTS_NS, seed=1)
    waits = [mean(turn.wait_ns / SECOND for turn in script.turns[2:]) for script in scripts]
    assert mean(waits) == pytest.approx(demand.think_s, rel=0.1)


def test_speeds_are_those_of_the_studies() -> None:
    if not path_of(SPEEDS).is_file():
        pytest.skip(f"no {SPEEDS} in ../shared/traces")
    speeds = load_speeds()
    assert (speeds.reading, speeds.typing) == (READING_WPM, TYPING_WPM)


@given(
    users=st.integers(1, 100_000),
    gpus=st.integers(1, 2000),
    gpus_per_host=st.integers(1, 16),
    users_max=st.integers(1, 1000),
)
def test_a_part_has_as_many_users_a_gpu_as_the_whole(
    users: int, gpus: int, gpus_per_host: int, users_max: int
) -> None:
    part = part_of(users, gpus, gpus_per_host, users_max)
    assert 1 <= part.gpus <= gpus and part.gpus_per_host <= gpus_per_host
    assert part.gpus >= min(gpus, GPUS_LEAST)
    assert abs(part.users / part.gpus - users / gpus) <= max(0.5 / part.gpus, 1)
    assert 0 < part.host_share <= 1
    if users <= users_max:
        assert (part.gpus, part.users, part.host_share) == (gpus, users, 1.0)
    if part.gpus > part.gpus_per_host and part.gpus < gpus:
        assert part.gpus % part.gpus_per_host == 0 and part.host_share == 1.0


def test_longest_histories_end_where_the_model_does() -> None:
    demand = Demand(users=1, context=4000)
    assert demand.history_range == (0, 8000)
    shortest, longest = replace(demand, tokens_max=6000).history_range
    assert shortest + longest == 8000 and longest < 6000 - 2 * demand.reply
