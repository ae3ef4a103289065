"""Places for turns that are far away or not coming, and what their workers are told."""

from services.scheduler.core import DropPrefetch, Effect, SendPrefetch
from services.scheduler.core.turns.reservations import STALE_LOOKS_MIN
from shared.hints import HINT_HOLD_NS
from tests.tables import largest_table
from tests.unit.scheduler.turns.driver import SECOND, Driver, only


def two_workers() -> Driver:
    d = Driver()
    d.report("w1")
    d.report("w2")
    d.wake(SECOND)
    d.report("w1")
    d.report("w2")
    return d


def chosen(d: Driver, session: str, arrives_s: float = 0) -> str | None:
    placement, _ = d.expect(session, arrives_s=arrives_s, expires_s=arrives_s + 60)
    return placement.worker_id


def dropped(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(e.worker_id, e.drop.session_id) for e in effects if isinstance(e, DropPrefetch)]


def test_a_far_turn_is_no_load_until_it_is_near() -> None:
    d = two_workers()
    spread = [chosen(d, f"far{n}", arrives_s=3600) for n in range(3)]
    assert spread == ["w1", "w2", "w1"], "so that they are spread when they come"
    near = [chosen(d, f"near{n}") or "" for n in range(4)]
    assert sorted(near[:2]) == sorted(near[2:]) == ["w1", "w2"], "the far ones are no load"
    for _ in range(3572):
        d.now_ns += SECOND
        d.report("w1")
        d.report("w2")
        d.wake()
    assert chosen(d, "now") == "w2", "the other one expects two turns soon"
    assert chosen(d, "then") == "w1"


def test_a_worker_is_told_when_and_how_much_is_expected() -> None:
    d = two_workers()
    d.submit("t", "s")
    _, effects = d.expect("s", arrives_s=20)
    (told,) = only(SendPrefetch, effects)
    assert told.prefetch.arrives_in_ns == 20 * SECOND
    assert told.prefetch.num_tokens == 100, "of the prompt of its last turn"
    d.now_ns += 5 * SECOND
    _, effects = d.expect("u")
    (told,) = only(SendPrefetch, effects)
    assert told.prefetch.arrives_in_ns == told.prefetch.num_tokens == 0


def test_what_a_worker_brings_up_follows_the_latest_advisory() -> None:
    d = two_workers()
    traces = []
    for trace in ("x", "y", ""):
        (told,) = only(SendPrefetch, d.expect("s", trace=trace)[1])
        traces.append(told.prefetch.trace)
    assert traces == ["x", "y", ""]


def test_a_turn_that_is_not_coming_is_told_to_its_worker() -> None:
    d = two_workers()
    place = chosen(d, "s")
    assert dropped(d.drop("s")) == [(place, "s")]
    assert dropped(d.drop("s")) == []


def test_a_turn_that_comes_on_another_model_is_not_coming_there() -> None:
    d = two_workers()
    d.report("w3", models=("other",))
    place = chosen(d, "s")
    assert dropped(d.submit("t", "s", model="other")) == [(place, "s")]


def test_a_turn_that_comes_to_its_place_takes_nothing_back() -> None:
    d = two_workers()
    chosen(d, "s")
    assert dropped(d.submit("t", "s")) == []


def test_a_place_that_moves_is_given_up_where_it_was() -> None:
    d = two_workers()
    assert chosen(d, "s") == "w1"
    effects = d.report("w1", models=())
    assert dropped(effects) == [("w1", "s")]
    assert [each.worker_id for each in only(SendPrefetch, effects)] == ["w2"]


def test_nobody_tells_the_dead() -> None:
    d = two_workers()
    assert chosen(d, "s") == "w1"
    effects = []
    for _ in range(12):
        effects += d.wake(SECOND // 4)
        effects += d.report("w2")
    assert dropped(effects) == []
    assert [each.worker_id for each in only(SendPrefetch, effects)] == ["w2"]


def test_a_far_turn_that_is_announced_again_sets_no_more_timers() -> None:
    d = two_workers()
    for later in range(200):
        chosen(d, "s", arrives_s=3600 + later)
        d.drop("s")
    for number in range(3000):
        chosen(d, "s", arrives_s=86_000 - number)
        d.drop("s")
    assert [worker.num_far for worker in d.workers()] == [0, 0]
    assert largest_table(d.core) <= STALE_LOOKS_MIN + 1


def test_a_turn_that_should_have_been_here_long_ago_is_no_load() -> None:
    """However long it is expected."""
    d = two_workers()
    first, _ = d.expect("s", expires_s=86_400)
    assert first.worker_id == "w1"
    assert chosen(d, "a") == "w2"
    for _ in range(HINT_HOLD_NS // SECOND + 1):
        d.now_ns += SECOND
        d.report("w1")
        d.report("w2")
        d.wake()
    assert [chosen(d, name) for name in ("b", "c")] == ["w2", "w1"]
    assert d.load("w1") == 2, "its place is kept all the same"


def test_a_turn_that_runs_elsewhere_leaves_no_hint() -> None:
    d = two_workers()
    assert chosen(d, "s") == "w1"
    effects = d.report("w2", ("t", 1))
    effects += d.submit("t", "s", sent_to="w2")
    assert dropped(effects) == [("w1", "s")]
