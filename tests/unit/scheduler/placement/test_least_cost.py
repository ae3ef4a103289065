"""Where turns go by their cost."""

from services.scheduler.core import CancelTurn, DropPrefetch, Limits, NotifyArrival, StartTurn
from services.scheduler.core.placement import Demand
from services.scheduler.core.placement.history import History
from services.scheduler.core.placement.least_cost import LeastCost
from shared.ids import HostId, ModelId, WorkerId
from shared.wire.messages import ModelSpeeds
from tests.unit.scheduler.turns.driver import SECOND, Driver, adapter_of, only
from tests.unit.scheduler.turns.test_placement import place, prefetched

GB = 1e9
# A token takes 0.1 ms, a block of 64 tokens 8 MB: computing one 6.4 ms, loading one less than 1 ms.
FAST = ModelSpeeds(
    model_id=ModelId("m"), token_ms=0.1, step_ms=10, row_ms=0.05, block_bytes=8_000_000,
    load_bytes_per_s=20 * GB, source_bytes_per_s=4 * GB, peer_bytes_per_s={HostId("a"): GB},
)  # fmt: skip
SLOW_LINK = ModelSpeeds(
    model_id=ModelId("m"), token_ms=10, step_ms=10, row_ms=0.05, block_bytes=8_000_000,
    load_bytes_per_s=20 * GB, source_bytes_per_s=4 * GB, peer_bytes_per_s={HostId("a"): GB / 100},
)  # fmt: skip


def two_hosts(speeds: ModelSpeeds = FAST, floor: int = 1) -> Driver:
    d = Driver(attempt_floor=floor, policy="cost")
    d.report("w1", host="a", speeds=speeds)
    d.report("w2", host="b", speeds=speeds)
    return d


def fill(d: Driver, worker: str, num: int, host: str, speeds: ModelSpeeds | None = None) -> None:
    """So many turns run there that nobody knew of."""
    d.report(worker, *[(f"{worker}-{n}", 1) for n in range(num)], host=host, speeds=speeds)


def test_the_paper_s_example_goes_to_the_node_with_fewer_requests() -> None:
    """Section 3.4: two requests on one node, four on the other, which has the session's KV."""
    d = two_hosts()
    fill(d, "w1", 4, "a")
    fill(d, "w2", 2, "b")
    assert d.expect("s", kv_at={"a": 30})[0].worker_id == "w2"


def test_turns_are_even_where_workers_are_alike() -> None:
    d = Driver(policy="cost")
    for number in range(8):
        d.report(f"w{number}")
    for number in range(83):
        d.submit(f"t{number}")
    assert sorted(d.load(f"w{number}") for number in range(8)) == [10] * 5 + [11] * 3


def test_a_slow_worker_gets_fewer_turns() -> None:
    d = Driver(policy="cost")
    slow = ModelSpeeds(model_id=ModelId("m"), token_ms=0.4, step_ms=20, row_ms=0.4)
    d.report("w1", speeds=slow)
    d.report("w2", speeds=ModelSpeeds(model_id=ModelId("m"), token_ms=0.1, step_ms=20, row_ms=0.1))
    for number in range(50):
        d.submit(f"t{number}")
    assert d.load("w1") < d.load("w2") / 3


def test_what_workers_of_one_kind_measure_differently_does_not_make_turns_uneven() -> None:
    """Each has learned another slope from batches of about eight rows."""
    d = Driver(policy="cost")
    for number, row_ms in list(enumerate((0.02, 0.2, 0.1, 0.15))) * 5:
        step_ms = 11.5 - 8 * row_ms
        told = ModelSpeeds(model_id=ModelId("m"), token_ms=0.1, step_ms=step_ms, row_ms=row_ms)
        d.report(f"w{number}", speeds=told)
    for number in range(40):
        d.submit(f"t{number}")
    assert all(9 <= d.load(f"w{number}") <= 11 for number in range(4))


def test_a_turn_that_is_here_goes_by_those_that_run_more_than_by_those_that_are_expected() -> None:
    d = two_hosts()
    fill(d, "w1", 6, "a")
    assert {d.expect(f"s{number}", arrives_s=1)[0].worker_id for number in range(5)} == {"w2"}
    for number in range(4):
        d.end("w1", f"w1-{number}")
    assert place(d.submit("t1"))[0] == "w2"


def test_a_session_stays_with_its_kv_as_long_as_moving_that_costs_more() -> None:
    d = two_hosts(SLOW_LINK)
    assert place(d.submit("t1", "s", num_tokens=640)) == ("w1", "balance")
    d.end("w1", "t1")
    fill(d, "w1", 3, "a")
    assert place(d.submit("t2", "s", num_tokens=700)) == ("w1", "affinity")
    d.end("w1", "t2")
    fill(d, "w1", 60, "a")
    assert place(d.submit("t3", "s", num_tokens=760)) == ("w2", "balance")


def test_an_announced_one_goes_where_there_is_room_all_the_same() -> None:
    d = two_hosts()
    d.submit("t1", "s", num_tokens=640)
    d.end("w1", "t1")
    fill(d, "w1", 3, "a")
    assert d.expect("s", kv_at={"a": 10}, arrives_s=10)[0].worker_id == "w2"


def test_a_new_scheduler_places_a_session_where_its_kv_is() -> None:
    d = two_hosts()
    assert place(d.submit("t1", "s", kv_at={"b": 30}, num_tokens=2000)) == ("w2", "kv")


def test_a_session_does_not_go_to_and_fro() -> None:
    d = two_hosts()
    where = set()
    for number in range(20):
        d.report("w1", *([("x", 1)] if number % 2 else []), host="a")
        d.report("w2", *([] if number % 2 else [("y", 1)]), host="b")
        where.add(place(d.submit(f"t{number}", "s", num_tokens=2000))[0])
        d.end("w1", f"t{number}")
        d.end("w2", f"t{number}")
    assert len(where) == 1


def test_turns_that_are_expected_at_the_same_time_are_kept_apart() -> None:
    d = two_hosts()
    assert d.expect("s1", arrives_s=20)[0].worker_id == "w1"
    assert d.expect("s2", arrives_s=1)[0].worker_id == "w2"
    assert d.expect("s3", arrives_s=20)[0].worker_id == "w2", "beside what is over by then"
    assert d.expect("s4", arrives_s=1)[0].worker_id == "w1"


def test_what_runs_now_is_over_by_the_time_of_a_turn_that_is_far() -> None:
    d = two_hosts()
    fill(d, "w2", 1, "b")
    assert d.expect("s1", arrives_s=60)[0].worker_id == "w1"
    fill(d, "w2", 3, "b")
    assert d.expect("s2", arrives_s=60)[0].worker_id == "w2"


def test_what_bringing_history_up_takes_depends_on_where_it_is_and_how_old() -> None:
    d = two_hosts()
    d.report("w3", host="a", speeds=FAST)
    workers = {worker.worker_id: worker for worker in d.workers()}
    speeds = workers[WorkerId("w1")].speeds[ModelId("m")]
    fetch_ms = {}
    for idle_s in (10, 500):
        demand = Demand(kv_at={HostId("a"): 10}, idle_ns=idle_s * SECOND)
        history = History.of(demand, workers[WorkerId("w1")])
        fetch_ms[idle_s] = [round(history.fetch_ms(w, speeds)) for w in workers.values()]
    assert fetch_ms == {10: [0, 80, 4], 500: [20, 80, 20]}, "from pool, link, arena; from disk"
    unknown = History.of(Demand(), None)
    assert unknown.tokens(64) == 0


def test_a_place_is_given_up_when_its_worker_is_overloaded_at_arrival() -> None:
    d = two_hosts(floor=4096)
    assert d.expect("s")[0].worker_id == "w1"
    d.report("w1", host="a", waiting_tokens=30_000)
    effects = d.submit("t", "s", sent_to="w1", kv_at={"a": 10}, num_tokens=700)
    assert place(effects) == ("w2", "moved")
    assert only(StartTurn, effects)[0].start.attempt == 4096
    assert [(e.worker_id, e.cancel.attempt) for e in only(CancelTurn, effects)] == [("w1", 1)]
    assert [(e.worker_id, e.drop.session_id) for e in only(DropPrefetch, effects)] == [("w1", "s")]
    assert not only(NotifyArrival, effects)[0].arrived.reserved
    assert (d.load("w1"), d.load("w2")) == (0, 1)


def test_a_place_that_costs_a_little_more_is_kept() -> None:
    d = two_hosts()
    d.expect("s")
    d.report("w1", ("x", 1), host="a", waiting_tokens=100)
    assert place(d.submit("t", "s", kv_at={"a": 10}, num_tokens=700)) == ("w1", "reserved")


def test_a_turn_on_its_way_is_cancelled_only_for_more_than_another() -> None:
    places = []
    for sent_to in (None, "w1"):
        d = two_hosts()
        d.expect("s")
        d.report("w1", host="a", waiting_tokens=150)
        places.append(place(d.submit("t", "s", sent_to=sent_to))[1])
    assert places == ["moved", "reserved"]


def test_urgent_turns_are_spread() -> None:
    d = two_hosts()
    d.submit("u1", priority=5)
    fill(d, "w2", 1, "b")
    d.report("w1", ("u1", 1), host="a")
    assert place(d.submit("u2", priority=5))[0] == "w2"
    assert place(d.submit("u3", priority=5))[0] == "w1", "two of them here, one with another there"


def test_an_urgent_one_counts_for_others_once() -> None:
    d = two_hosts()
    d.submit("u1", priority=5)
    d.report("w1", ("u1", 1), host="a")
    fill(d, "w2", 2, "b")
    assert place(d.submit("t"))[0] == "w1"


def test_a_holder_of_the_adapter_is_preferred() -> None:
    d = two_hosts()
    d.report("w2", host="b", adapters="A")
    assert place(d.submit("t1", adapter=adapter_of("A"))) == ("w2", "adapter")


def test_workers_that_tell_no_speeds_are_as_fast_as_others_told() -> None:
    d = Driver(policy="cost")
    d.report("w1", speeds=FAST)
    d.report("w2")
    assert [place(d.submit(f"t{number}"))[0] for number in range(4)] == ["w1", "w2"] * 2


def test_of_very_many_workers_some_are_looked_at_and_those_with_the_history() -> None:
    d = Driver(policy="cost")
    assert LeastCost.num_looked_at is not None
    num_workers = 3 * LeastCost.num_looked_at
    for number in range(num_workers):
        d.report(f"w{number}", host=f"h{number}", speeds=FAST)
    for number in range(2 * num_workers):
        d.submit(f"t{number}")
    loads = [d.load(f"w{number}") for number in range(num_workers)]
    assert set(loads) == {2}, "as even as if all were looked at"
    for number in range(4):
        kv_at = {f"h{7 * number}": 30}
        turn = d.submit(f"s{number}", "s" + str(number), kv_at=kv_at, num_tokens=2000)
        assert place(turn) == (f"w{7 * number}", "kv")


def test_those_are_no_longer_looked_at_that_drain() -> None:
    d = Driver(Limits(learning_ns=0, dead_after_ns=100 * SECOND), policy="cost")
    assert LeastCost.num_looked_at is not None
    for number in range(2 * LeastCost.num_looked_at):
        d.report(f"w{number}", host="h")
    for number in range(1, 2 * LeastCost.num_looked_at):
        d.report(f"w{number}", host="h", state="draining")
    assert {place(d.submit(f"t{number}", kv_at={"h": 3}))[0] for number in range(3)} == {"w0"}


def test_a_worker_on_another_host_from_now_on_is_found_there() -> None:
    d = two_hosts()
    d.report("w1", host="c", incarnation="b", speeds=FAST)
    assert prefetched(d.expect("s", kv_at={"c": 30})[1]) == [("w1", "s")]
    d.report("w1", host="c", incarnation="b", state="draining")
    assert place(d.submit("t", kv_at={"c": 30}))[0] == "w2"
