"""A plan put together from trials: what it answers, what it tells, and a few real trials."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from loadtest.cluster.result import ClusterResult, PrefetchCounts, Spread
from loadtest.planning.demand import Demand
from loadtest.planning.machines import Machines
from loadtest.planning.plan import AT_ONCE, Question, make_plan
from loadtest.planning.share import part_of
from loadtest.planning.summary import history_shares, summarize
from loadtest.planning.targets import Targets, missed
from loadtest.planning.trial import Seen, Trial, simulate
from shared.errors import InvalidRequest
from shared.profiles import PROFILES

TARGETS = Targets(ttft_ms=1000.0, tpot_ms=50.0)
QUESTION = Question(
    profile=PROFILES["a100-llama3.1-8b"],
    demand=Demand(users=4000, context=4000),
    targets=TARGETS,
    machines=Machines(),
    gpus_max=100,
    seconds=60.0,
    seed=1,
)
ALL_EVEN = Spread(20.0, 20.0, 20.0, 20.0)
GOOD = ClusterResult(
    turns=10, failed=0, unfinished=0, ttft_ms=ALL_EVEN, tpot_ms=ALL_EVEN, normalized_ms=ALL_EVEN,
    by_priority={}, requests_per_s=1.0, tokens_per_s=1.0, load_max_over_median=1.0,
    recomputed_tokens=100, prompt_tokens=1000, prefetch=PrefetchCounts(1, 0, 0, 0),
    loaded_tokens={}, cached_tokens={"pool": 300, "host": 400, "disk": 150, "peer": 50},
)  # fmt: skip
SLOW = replace(GOOD, ttft_ms=Spread(900.0, 800.0, 1500.0, 2000.0))


def deployment(boundary: int, without: int) -> Any:
    """Runs that are good from so many GPUs on."""
    rounds: list[list[int]] = []

    def run(trials: Sequence[Trial]) -> list[Seen]:
        rounds.append([trial.gpus for trial in trials])
        return [
            Seen(
                gpus=trial.gpus,
                part=part_of(trial.demand.users, trial.gpus, trial.machines.gpus, trial.users_max),
                seconds=100.0,
                result=GOOD
                if trial.gpus >= (boundary if trial.demand.hinted else without)
                else SLOW,
            )
            for trial in trials
        ]

    return run, rounds


def test_the_answer_is_the_boundary_and_what_one_fewer_lacks_is_told() -> None:
    run, rounds = deployment(boundary=19, without=22)
    said: list[str] = []
    plan = make_plan(QUESTION, run, said.append)
    assert (plan.gpus, plan.short) == (19, 18)
    assert plan.gpus_without_hints == 22
    assert max(map(len, rounds)) <= AT_ONCE
    assert plan.tried[18].missed and not plan.best.missed
    assert "the same without hints" in said


def test_without_hints_in_the_question_nothing_is_compared() -> None:
    run, _ = deployment(boundary=99, without=17)
    plan = make_plan(replace(QUESTION, demand=replace(QUESTION.demand, hinted=0.0)), run)
    assert plan.gpus == 17 and not plan.without_hints
    assert summarize(plan)["without_hints"] is None


def test_if_the_most_are_not_enough_it_says_why() -> None:
    run, _ = deployment(boundary=1000, without=1000)
    summary = summarize(make_plan(replace(QUESTION, gpus_max=20), run))
    assert not summary["is_enough"] and summary["gpus"] == 20
    assert summary["seen"]["missed"] == [
        "first tokens took 1,500 ms at the 95th percentile, and 1,000 are allowed"
    ]
    assert summary["fewer"] is None and summary["without_hints"] is None


def test_what_arithmetic_rules_out_is_not_simulated() -> None:
    run, rounds = deployment(boundary=1, without=1)
    with pytest.raises(InvalidRequest, match=r"--gpus-max 1: .* work for \d+ GPUs"):
        make_plan(replace(QUESTION, gpus_max=1), run)
    assert not rounds


def test_each_target_that_is_missed_is_named() -> None:
    late = Spread(60.0, 55.0, 70.0, 80.0)
    bad = replace(SLOW, tpot_ms=late, failed=2, unfinished=3)
    reasons = missed(bad, TARGETS)
    assert [reason.split()[0] for reason in reasons] == ["first", "further", "2", "3"]
    assert missed(GOOD, TARGETS) == []
    assert missed(replace(GOOD, turns=0), TARGETS) == ["no turn ended"]
    at_p99 = replace(TARGETS, percentile="p99", ttft_ms=1800.0)
    assert "2,000 ms at the 99th" in missed(SLOW, at_p99)[0]
    assert not missed(SLOW, replace(at_p99, percentile="p95"))


def test_shares_of_history_are_of_all_of_it() -> None:
    assert history_shares(GOOD) == {
        "gpu": 0.3, "host_memory": 0.4, "disk": 0.15, "other_hosts": 0.05, "recomputed": 0.1,
    }  # fmt: skip
    assert history_shares(replace(GOOD, cached_tokens={}, recomputed_tokens=0)) == {}


def test_a_summary_is_plain_values_that_add_up() -> None:
    run, _ = deployment(boundary=21, without=21)
    summary = orjson.loads(orjson.dumps(summarize(make_plan(QUESTION, run))))
    sessions = summary["sessions"]
    assert sessions["bytes"] == 4000 * 4000 * 131_072
    assert summary["hosts"] == 6
    assert sessions["host_memory_bytes"] == 6 * summary["settings"]["SYMPHONY_ARENA_BYTES"]
    assert sessions["disk_bytes"] == 6 * 4e12
    assert summary["seen"]["simulated"]["users"] == round(4000 * 2 / 21)
    assert summary["fewer"]["gpus"] == 20
    turns_per_s = 4000 / (QUESTION.demand.think_s + QUESTION.demand.reply_tokens * 0.05)
    assert sessions["new_bytes_per_host_and_day"] == pytest.approx(
        turns_per_s * (QUESTION.demand.new_tokens + QUESTION.demand.reply_tokens) * 131_072
        * 86_400 / 6
    )  # fmt: skip


# Real trials, small ones.


def trial(**changes: Any) -> Trial:
    plain = Trial(
        profile=replace(QUESTION.profile, num_layers=4),
        demand=Demand(users=16, context=600, reply=40),
        machines=Machines(gpus=1, dram_gb=8.0),
        gpus=2,
        seconds=20.0,
        seed=5,
        users_max=400,
    )
    return replace(plain, **changes)


def test_a_trial_is_the_same_each_time_and_hints_bring_history_before_its_turn() -> None:
    once, again = simulate(trial()), simulate(trial())
    assert replace(once.result, took_s=0.0) == replace(again.result, took_s=0.0)
    assert once.result.turns > 5 and not once.result.failed and not once.result.unfinished
    assert once.result.prefetch.used > 0
    demand = replace(trial().demand, hinted=0.0)
    assert simulate(trial(demand=demand)).result.prefetch.used == 0


def test_history_is_found_and_little_of_it_computed_again() -> None:
    shares = history_shares(simulate(trial()).result)
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.001)
    assert shares["recomputed"] < 0.02


def test_where_memory_and_disk_hold_nothing_history_is_computed_again() -> None:
    tight = Machines(gpus=1, dram_gb=0.3, disk_gb=0.01)
    small = replace(trial().profile, num_kv_tokens=5000)
    shares = history_shares(simulate(trial(machines=tight, profile=small)).result)
    assert shares["recomputed"] > 0.4 and shares["recomputed"] + shares["gpu"] > 0.99
