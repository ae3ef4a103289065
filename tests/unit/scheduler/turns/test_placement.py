"""Where turns and reservations go."""

from services.scheduler.core import (
    Effect,
    Limits,
    NotifyArrival,
    NotifyFrontends,
    PlacementReason,
    SendPrefetch,
    StartTurn,
)
from shared.blocks import BLOCK_TOKENS
from shared.eviction import RECENT_NS
from tests.unit.scheduler.turns.driver import SECOND, Driver, adapter_of, only


def place(effects: list[Effect]) -> tuple[str, PlacementReason]:
    (start,) = only(StartTurn, effects)
    return start.worker_id, start.reason


def prefetched(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(e.worker_id, e.prefetch.session_id) for e in only(SendPrefetch, effects)]


def test_the_paper_s_example_goes_to_the_node_with_fewer_requests() -> None:
    """Section 3.4: two requests on one node, four on the other."""
    d = Driver()
    d.report("w1", ("a", 1), ("b", 1))
    d.report("w2", ("c", 1), ("d", 1), ("e", 1), ("f", 1))
    assert d.expect("s")[0].worker_id == "w1"


def test_turns_and_reservations_count_alike() -> None:
    d = Driver()
    d.report("w1")
    d.report("w2")
    d.expect("s1")
    assert place(d.submit("t")) == ("w2", "balance")
    assert d.load("w1") == d.load("w2") == 1


def test_ties_go_by_waiting_tokens_then_free_pages_then_id() -> None:
    d = Driver()
    d.report("w1", waiting_tokens=10, pages_free=9)
    d.report("w2", pages_free=1)
    d.report("w3", pages_free=5)
    d.report("w4", pages_free=5)
    assert place(d.submit("t")) == ("w3", "balance")


def test_a_turn_goes_where_its_place_is_kept_and_uses_it_up() -> None:
    d = Driver()
    d.report("w1")
    placement, effects = d.expect("s")
    assert placement.worker_id == "w1"
    assert prefetched(effects) == [("w1", "s")]
    d.report("w2")
    effects = d.submit("t", "s")
    assert place(effects) == ("w1", "reserved")
    assert only(NotifyArrival, effects)[0].arrived.reserved
    assert d.load("w1") == 1


def test_a_place_kept_for_another_model_is_given_up() -> None:
    d = Driver()
    d.report("w1", models=("m", "n"))
    d.expect("s", model="n")
    assert place(d.submit("t", "s")) == ("w1", "balance")
    assert d.load("w1") == 1


def test_a_place_moves_when_its_worker_drains_or_dies() -> None:
    d = Driver()
    d.report("w1")
    d.expect("s")
    d.report("w2")
    assert prefetched(d.report("w1", state="draining")) == [("w2", "s")]
    d.report("w3")
    assert prefetched(d.report("w2", state="draining")) == [("w3", "s")]
    d.wake(SECOND)
    assert prefetched(d.gone("w3")) == [], "nobody is left"
    assert d.core.status(d.now_ns).num_reservations == 0


def test_a_restarted_worker_is_asked_to_prefetch_again() -> None:
    d = Driver()
    d.report("w1")
    d.expect("s")
    assert prefetched(d.report("w1", incarnation="b")) == [("w1", "s")]


def test_a_place_ends_with_its_expiry_or_when_dropped() -> None:
    d = Driver(Limits(learning_ns=0, dead_after_ns=100 * SECOND))
    d.report("w1")
    d.expect("s1", expires_s=5)
    d.expect("s2", expires_s=5)
    d.expect("s2", expires_s=20)
    d.expect("s3")
    d.drop("s3")
    assert d.load("w1") == 2
    d.wake(5 * SECOND)
    assert d.core.status(d.now_ns).num_reservations == 1
    d.report("w1")
    d.wake(15 * SECOND)
    assert d.core.status(d.now_ns).num_reservations == 0


def test_expecting_again_keeps_the_place() -> None:
    d = Driver()
    d.report("w1")
    d.expect("s")
    d.report("w2")
    placement, effects = d.expect("s", priority=7)
    assert placement.worker_id == "w1"
    assert only(SendPrefetch, effects)[0].prefetch.priority == 7
    assert d.load("w1") == 1


def test_a_session_stays_near_its_cache_while_that_costs_one_turn_at_most() -> None:
    d = Driver()
    d.report("w1")
    d.submit("t1", "s")
    d.report("w2")
    assert place(d.submit("t2", "s")) == ("w1", "affinity")
    assert place(d.submit("t3", "s")) == ("w2", "balance")


def restarted() -> Driver:
    """A scheduler that remembers no session, and two workers on hosts of their own."""
    d = Driver()
    d.report("w1", host="a")
    d.report("w2", host="b")
    return d


def test_a_new_scheduler_places_a_session_where_its_kv_is() -> None:
    d = restarted()
    assert place(d.submit("t1", "s", kv_at={"b": 3, "gone": 9})) == ("w2", "kv")
    assert place(d.submit("t2", "s", kv_at={"a": 9})) == ("w2", "affinity"), "it has learned"
    assert place(d.submit("t3", "other")) == ("w1", "balance")


def test_a_place_is_kept_where_the_session_s_kv_is_and_stays_on_that_host() -> None:
    d = restarted()
    d.report("w0", host="a", pages_free=9)
    d.report("w3", host="b")
    assert d.expect("s", kv_at={"b": 3})[0].worker_id == "w2"
    assert prefetched(d.report("w2", host="b", state="draining")) == [("w3", "s")]


def test_kv_is_known_to_be_where_the_session_s_last_turn_ran() -> None:
    """Redis tells of disks, later: a turn that follows soon finds more in that host's memory."""
    d = restarted()
    (first,) = only(StartTurn, d.submit("t1", "s", kv_at={"b": 3}, num_tokens=1000))
    assert (first.worker_id, first.start.kv_at) == ("w2", {"b": 3})
    d.end("w2", "t1")
    known = {"a": 2, "b": 1000 // BLOCK_TOKENS + 1}
    _, effects = d.expect("s", kv_at={"a": 2, "b": 1})
    (prefetch,), (place_told,) = only(SendPrefetch, effects), only(NotifyFrontends, effects)
    assert prefetch.prefetch.kv_at == place_told.placed.kv_at == known
    (next_one,) = only(StartTurn, d.submit("t2", "s", kv_at={"a": 2, "b": 1}, num_tokens=1100))
    assert next_one.start.kv_at == known
    d.wake(RECENT_NS)
    d.report("w1", host="a")
    d.report("w2", host="b")
    (later,) = only(StartTurn, d.submit("t3", "s", kv_at={"a": 2}, num_tokens=1200))
    assert later.start.kv_at == {"a": 2}, "by now all that is there is told"


def test_kv_is_not_where_the_last_turn_ran_on_another_model_or_a_worker_that_is_gone() -> None:
    d = restarted()
    d.report("w3", host="c", models=("n",))
    d.submit("t1", "s", model="n", num_tokens=1000)
    (start,) = only(StartTurn, d.submit("t2", "s", kv_at={"a": 2}, num_tokens=1000))
    assert start.start.kv_at == {"a": 2}
    d.end(start.worker_id, "t2")
    d.wake(3 * SECOND)
    d.report("w2", host="b")
    (start,) = only(StartTurn, d.submit("t3", "s", kv_at={"b": 2}, num_tokens=1000))
    assert start.start.kv_at == {"b": 2}


def test_kv_on_a_host_costs_one_turn_at_most() -> None:
    d = restarted()
    d.report("w2", ("x", 1), host="b")
    assert place(d.submit("t1", "s1", kv_at={"b": 3})) == ("w2", "kv")
    assert place(d.submit("t2", "s2", kv_at={"b": 3})) == ("w1", "balance")


def test_of_several_hosts_the_one_with_the_most_counts_and_there_the_least_burden() -> None:
    d = restarted()
    d.report("w3", host="b", pages_free=1)
    assert place(d.submit("t1", "s1", kv_at={"a": 2, "b": 3})) == ("w3", "kv")
    assert place(d.submit("t2", "s2", kv_at={"a": 3, "b": 2})) == ("w1", "kv")
    assert place(d.submit("t3", "s3", kv_at={"a": 3, "b": 3})) == ("w2", "balance")


def test_beside_its_kv_a_turn_goes_to_a_holder_of_its_adapter() -> None:
    d = restarted()
    d.report("w1", host="a", adapters="A", pages_free=9)
    d.report("w3", host="b", adapters="A")
    turn = d.submit("t1", "s", kv_at={"b": 3}, adapter=adapter_of("A"))
    assert place(turn) == ("w3", "adapter")


def test_a_turn_whose_worker_dies_stays_on_its_host() -> None:
    d = restarted()
    d.report("w0", host="a", pages_free=9)
    d.report("w3", host="b")
    assert place(d.submit("t1", "s", kv_at={"b": 3})) == ("w2", "kv")
    assert place(d.report("w2", host="b", incarnation="b")) == ("w3", "replaced")


def test_locations_that_nobody_should_send_are_not_used() -> None:
    d = restarted()
    many = {f"h{number}": 1 for number in range(100)}
    assert place(d.submit("t1", "s1", kv_at={**many, "b": 3})) == ("w1", "balance")
    assert place(d.submit("t2", "s2", kv_at={"a": 0, "b": -1})) == ("w2", "balance")


def test_affinity_fades() -> None:
    d = Driver(Limits(learning_ns=0, affinity_ns=SECOND))
    d.report("w2")
    d.submit("t1", "s")
    d.end("w2", "t1")
    d.report("w1")
    d.now_ns += 2 * SECOND
    d.report("w1")
    d.report("w2")
    assert place(d.submit("t2", "s"))[0] == "w1"


def test_a_session_without_model_is_expected_on_its_last_one() -> None:
    d = Driver()
    d.report("w1", models=("m",))
    d.report("w2", models=("n",))
    assert d.expect("s", model=None)[0].worker_id is None
    d.submit("t", "s", model="n")
    assert d.expect("s", model=None)[0].worker_id == "w2"


def test_nothing_is_kept_where_nobody_serves() -> None:
    d = Driver()
    placement, effects = d.expect("s")
    assert placement.worker_id is None
    assert prefetched(effects) == []


def test_reservations_are_bounded() -> None:
    d = Driver(Limits(learning_ns=0, reservations_max=1))
    d.report("w1")
    assert d.expect("s1")[0].worker_id == "w1"
    assert d.expect("s2")[0].worker_id is None


def test_where_redis_tells_nothing_the_scheduler_knows_where_a_session_ran() -> None:
    d = restarted()
    (first,) = only(StartTurn, d.submit("t1", "s", kv_at={"b": 30}, num_tokens=500))
    assert first.worker_id == "w2"
    d.end("w2", "t1")
    (second,) = only(StartTurn, d.submit("t2", "s", kv_at={"*": 31}, num_tokens=520))
    assert second.start.kv_at == {"b": 31}
    (other,) = only(StartTurn, d.submit("t3", "s-new", kv_at={"*": 31}, num_tokens=520))
    assert other.start.kv_at == {"*": 31}, "somebody else may know"
    adapted = d.submit("t4", "s", kv_at={"*": 31}, num_tokens=520, adapter=adapter_of("A"))
    assert only(StartTurn, adapted)[0].start.kv_at == {"*": 31}, "it ran on something else"
