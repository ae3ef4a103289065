"""What is reckoned of a session's history: where it is, whose it is, and what cannot be."""

import pytest

from services.scheduler.core import Limits, StartTurn
from services.scheduler.core.fleet.kinds import GUESSED
from services.scheduler.core.fleet.speeds import DEFAULT_SPEEDS
from services.scheduler.core.placement import Demand
from services.scheduler.core.placement.history import History
from services.scheduler.core.placement.least_cost import LeastCost
from shared.ids import HostId, ModelId
from shared.locations import OBJECTS
from shared.wire.messages import ModelSpeeds
from tests.unit.scheduler.placement.test_least_cost import FAST, GB, two_hosts
from tests.unit.scheduler.turns.driver import SECOND, Driver, adapter_of, only
from tests.unit.scheduler.turns.test_placement import place

M = ModelId("m")
HUGE = 10**400
STORE = ModelSpeeds(
    model_id=M, token_ms=0.1, step_ms=10, row_ms=0.05, block_bytes=8_000_000,
    load_bytes_per_s=20 * GB, source_bytes_per_s=4 * GB,
    peer_bytes_per_s={HostId("a"): GB, HostId("b"): GB, OBJECTS: GB / 2},
)  # fmt: skip


@pytest.mark.parametrize(
    ("kv_at", "expected_ms"),
    [
        ({"@x": 20, "b": 10}, [320, 160]),  # ten of them are on w2's host
        ({"@x": 10, "b": 10}, [80, 20]),
        ({"a": 8, "b": 10}, [16, 20]),  # two come from the other host
        ({"@x": 10}, [160, 160]),
    ],
)
def test_each_part_comes_from_where_it_is(kv_at: dict[str, int], expected_ms: list[int]) -> None:
    d = two_hosts(STORE)
    demand = Demand(kv_at={HostId(host): num for host, num in kv_at.items()})
    history = History.of(demand, None)
    fetch_ms = [history.fetch_ms(w, w.speeds[M]) for w in d.workers()]
    assert [round(each) for each in fetch_ms] == expected_ms


def test_an_old_home_that_others_do_not_name_has_it_no_more() -> None:
    d = two_hosts()
    home, _ = d.workers()
    fetch_ms = {}
    for idle_s in (10, 500):
        demand = Demand(kv_at={HostId("b"): 10}, idle_ns=idle_s * SECOND)
        fetch_ms[idle_s] = round(History.of(demand, home).fetch_ms(home, home.speeds[M]))
    assert fetch_ms == {10: 0, 500: 80}


def test_history_of_another_adapter_is_none() -> None:
    for name, expected in (("A", ("w1", "affinity")), ("B", ("w2", "balance"))):
        d = two_hosts()
        assert place(d.submit("t1", "s", adapter=adapter_of("A"), num_tokens=2000))[0] == "w1"
        d.end("w1", "t1")
        d.report("w1", ("x", 1), host="a", adapters=name, speeds=FAST)
        d.report("w2", host="b", adapters=name, speeds=FAST)
        turn = d.submit("t2", "s", adapter=adapter_of(name), num_tokens=2000)
        assert place(turn)[0] == expected[0]
        (worker,) = [each for each in d.workers() if each.worker_id == expected[0]]
        assert worker.num_tokens_dispatched == (0 if name == "A" else 2000)


def test_places_for_turns_that_are_far_are_not_urgent_yet() -> None:
    d = Driver(Limits(learning_ns=0, dead_after_ns=1000 * SECOND), policy="cost")
    d.report("w1")
    d.expect("s", priority=5, arrives_s=100, expires_s=300)
    (worker,) = d.workers()
    assert worker.num_urgent == 0
    d.expect("s", priority=6, arrives_s=100, expires_s=300)
    d.wake(71 * SECOND)
    assert worker.num_urgent == 1
    d.drop("s")
    assert worker.num_urgent == 0


def test_of_very_many_workers_others_are_looked_at_though_all_turns_are_announced() -> None:
    d = Driver(policy="cost")
    assert LeastCost.num_looked_at is not None
    num_workers = 2 * LeastCost.num_looked_at
    for number in range(num_workers):
        d.report(f"w{number}", host=f"h{number}", speeds=FAST)
    for number in range(num_workers):
        d.expect(f"s{number}")
        assert place(d.submit(f"t{number}", f"s{number}"))[1] == "reserved", "no other is better"
    assert {d.load(f"w{number}") for number in range(num_workers)} == {1}


def test_numbers_that_cannot_be_break_and_steer_nothing() -> None:
    d = two_hosts()
    wild = ModelSpeeds(model_id=M, token_ms=1e-9, step_ms=1e-9, row_ms=1e-9, block_bytes=HUGE)
    for waiting, seats in ((HUGE, HUGE), (-HUGE, -1)):
        d.report("w3", host="c", waiting_tokens=waiting, seats=seats, speeds=wild)
        for number, size in enumerate((HUGE, -HUGE, 100)):
            name = f"{waiting > 0}-{number}"
            turn = d.submit(name, name, num_tokens=size)
            assert only(StartTurn, turn)[0].start.num_prompt_tokens >= 0
            assert place(d.submit(name + "b", name, num_tokens=size))
        for arrives_s in (-5, -1, 10**30):
            assert d.expect(f"s{arrives_s}", arrives_s=arrives_s)[0].worker_id
    (worker,) = [each for each in d.workers() if each.worker_id == "w3"]
    assert worker.report.turns_running_max == worker.report.num_waiting_tokens == 0
    assert worker.steps[M].step_ms == FAST.step_ms, "as others told"


def test_what_is_no_figure_is_typical_of_nobody() -> None:
    d = Driver(policy="cost")
    d.report("w1", speeds=ModelSpeeds(model_id=M, token_ms=1e12, step_ms=1e12, row_ms=1e12))
    d.report("w2")
    assert [worker.speeds[M] for worker in d.workers()] == [DEFAULT_SPEEDS] * 2
    assert [worker.steps[M] for worker in d.workers()] == [GUESSED] * 2
