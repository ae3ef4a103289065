"""Turns on adapters: where they go, and what is known of them."""

from collections.abc import Collection

from services.scheduler.core import Limits, PlacementReason, SchedulerCore, SendPrefetch, StartTurn
from services.scheduler.core.fleet.records import Worker
from services.scheduler.core.placement import Balance, Demand
from tests.unit.scheduler.turns.driver import Driver, adapter_of, only, starts

A, B = adapter_of("a"), adapter_of("b", lora_rank=64)


def test_a_turn_goes_where_its_adapter_is_while_that_costs_one_turn_at_most() -> None:
    d = Driver()
    d.report("w1")
    d.report("w2", ("t0", 1), adapters="a")
    assert starts(d.submit("t1", adapter=B)) == [("w1", "t1", 1, "balance")]
    assert starts(d.submit("t2", adapter=A)) == [("w2", "t2", 1, "adapter")]
    assert starts(d.submit("t3", adapter=A)) == [("w2", "t3", 1, "adapter")]
    assert starts(d.submit("t4", adapter=A)) == [("w1", "t4", 1, "balance")]


def test_what_was_sent_or_is_expected_counts_before_a_report_says_so() -> None:
    d = Driver()
    for worker in ("w1", "w2", "w3"):
        d.report(worker)
    d.submit("t1", adapter=A)
    d.expect("s", adapter=B)
    assert starts(d.submit("t2", adapter=B)) == [("w2", "t2", 1, "adapter")]
    assert starts(d.submit("t3", adapter=A)) == [("w1", "t3", 1, "adapter")]
    d.end("w2", "t2")
    d.drop("s")
    assert starts(d.submit("t4", adapter=B)) == [("w3", "t4", 1, "balance")]


def test_the_worker_of_a_sessions_kv_comes_first() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t0", "s", adapter=A)
    d.end("w1", "t0")
    d.report("w2", adapters="a")
    assert starts(d.submit("t1", "s", adapter=A)) == [("w1", "t1", 1, "affinity")]
    assert starts(d.submit("t2", adapter=A)) == [("w2", "t2", 1, "adapter")]


def test_a_worker_that_begins_anew_or_lets_an_adapter_go_has_none() -> None:
    d = Driver()
    d.report("w1")
    d.report("w2", adapters="a")
    d.report("w2", adapters="b")
    assert starts(d.submit("t1", adapter=A)) == [("w1", "t1", 1, "balance")]
    d.end("w1", "t1")
    d.report("w2", adapters="", incarnation="b")
    (placed,) = only(StartTurn, d.submit("t2", adapter=B))
    assert placed.reason == "balance"


def test_an_attempt_that_is_placed_again_keeps_its_adapter() -> None:
    d = Driver()
    d.report("w1")
    d.report("w2")
    d.submit("t", adapter=A)
    (placed,) = only(StartTurn, d.submit("t", attempt=7))
    assert (placed.worker_id, placed.start.adapter) == ("w2", A)


def test_advisories_bring_adapters_up() -> None:
    d = Driver()
    d.report("w1")
    (sent,) = only(SendPrefetch, d.expect("s", adapter=A)[1])
    assert sent.prefetch.adapter == A
    (sent,) = only(SendPrefetch, d.expect("s", adapter=B)[1])
    assert sent.prefetch.adapter == B, "another adapter of the same model keeps the place"
    d.submit("t", "s", adapter=A)
    (sent,) = only(SendPrefetch, d.expect("s", model=None)[1])
    assert sent.prefetch.adapter == A, "that of the session's last turn"
    (sent,) = only(SendPrefetch, d.expect("s")[1])
    assert sent.prefetch.adapter is None, "the model itself was named"


class Watching(Balance):
    """Notes what it is told."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.seen: list[tuple[Demand, list[tuple[str, int]]]] = []

    def choose(
        self, workers: Collection[Worker], home: Worker | None, demand: Demand
    ) -> tuple[Worker, PlacementReason]:
        adapters = [t.adapter for w in workers for t in w.turns.values() if t.adapter is not None]
        turns = [(adapter.adapter_hash[:1], adapter.lora_rank) for adapter in adapters]
        self.seen.append((demand, turns))
        return super().choose(workers, home, demand)


def test_a_policy_is_told_the_demand_and_the_ranks_of_all_turns() -> None:
    d = Driver()
    policy = Watching(d.limits)
    d.core = SchedulerCore(policy, d.limits, d.now_ns)
    d.report("w1", ("old", 1), running=B)  # adopted: this scheduler is new
    (start,) = only(StartTurn, d.submit("t1", adapter=A, slo_tpot_ms=50.0))
    assert start.start.slo_tpot_ms == 50.0
    d.submit("t2")
    (first, before), (second, after) = policy.seen
    assert (first.slo_tpot_ms, second.slo_tpot_ms) == (50.0, None)
    assert (first.adapter, first.num_prompt_tokens) == (A, 100) and second.adapter is None
    assert before == [("b", 64)] and after == [("b", 64), ("a", 8)]
