"""Who is stuck, decided from what was heard round by round."""

from hypothesis import given
from hypothesis import strategies as st

from cli.supervisor.liveness import STANDSTILL_NS, Liveness, Round, Stuck

INTERVAL_NS = 2_000_000_000
STUCK_AFTER_NS = 15_000_000_000
ROUNDS_MAX = 8  # of silence: the first that make 15 s
READY = "ready"


def deployment(*services: str, servers: tuple[str, ...] = ()) -> Liveness:
    liveness = Liveness(INTERVAL_NS, STUCK_AFTER_NS)
    for name in servers:
        liveness.on_started(name, is_server=True)
    for name in services:
        liveness.on_started(name, is_server=False)
    return liveness


def one_round(*, is_passed_on: bool = True, lasted_ns: int = INTERVAL_NS) -> Round:
    return Round(lasted_ns=lasted_ns, is_passed_on=is_passed_on, services=[], servers=[])


ROUND = one_round()
AWAY = one_round(is_passed_on=False)
STANDSTILL = one_round(lasted_ns=INTERVAL_NS + STANDSTILL_NS + 1)


def test_who_is_silent_for_long_enough_is_stuck_and_told_once() -> None:
    liveness = deployment("a", "b")
    liveness.on_round(ROUND, {"a": READY, "b": READY})
    for number in range(1, 20):
        stuck = liveness.on_round(ROUND, {"b": READY})
        expected = [Stuck("a", ROUNDS_MAX * INTERVAL_NS)] if number == ROUNDS_MAX else []
        assert stuck == expected
        assert liveness.silent() == (["a"] if number > 1 else [])


def test_one_answer_wipes_out_all_silence() -> None:
    liveness = deployment("a")
    liveness.on_round(ROUND, {"a": READY})
    for _ in range(10):
        for _ in range(ROUNDS_MAX - 1):
            assert liveness.on_round(ROUND, {}) == []
        assert liveness.on_round(ROUND, {"a": "draining"}) == []
        assert liveness.silent() == []


def test_who_was_never_ready_may_take_as_long_as_it_likes_in_every_life() -> None:
    liveness = deployment("a")
    for _ in range(2):
        liveness.on_round(ROUND, {"a": "starting"})
        for _ in range(1000):
            assert liveness.on_round(ROUND, {}) == []
        liveness.on_round(ROUND, {"a": READY})
        silent = [liveness.on_round(ROUND, {}) for _ in range(ROUNDS_MAX)]
        assert [bool(stuck) for stuck in silent] == [False] * (ROUNDS_MAX - 1) + [True]
        liveness.on_exit("a")
        assert liveness.on_round(ROUND, {}) == []
        liveness.on_started("a", is_server=False)


def test_who_was_seen_ready_before_the_first_round_is_judged() -> None:
    liveness = deployment("a")
    liveness.on_deployment_ready()
    assert [len(liveness.on_round(ROUND, {})) for _ in range(ROUNDS_MAX)].count(1) == 1


def test_a_stuck_nats_costs_itself_and_nobody_else() -> None:
    liveness = deployment("a", servers=("nats", "redis"))
    liveness.on_round(ROUND, {"a": READY, "nats": READY, "redis": READY})
    for _ in range(3):
        liveness.on_round(ROUND, {"redis": READY, "nats": READY})
    stuck = [s for _ in range(50) for s in liveness.on_round(AWAY, {"redis": READY})]
    assert [each.name for each in stuck] == ["nats"]
    liveness.on_exit("nats")
    liveness.on_started("nats", is_server=True)
    back = {"redis": READY, "nats": READY}
    for _ in range(ROUNDS_MAX - 1):  # clocks start anew
        assert liveness.on_round(ROUND, back) == []
    assert [each.name for each in liveness.on_round(ROUND, back)] == ["a"]


def test_a_stuck_redis_is_found_while_nats_is_away() -> None:
    liveness = deployment(servers=("redis",))
    liveness.on_round(ROUND, {"redis": READY})
    stuck = [s for _ in range(ROUNDS_MAX) for s in liveness.on_round(AWAY, {})]
    assert [each.name for each in stuck] == ["redis"]


def test_a_standstill_is_nobodys_fault_and_forgives_nothing() -> None:
    liveness = deployment("a")
    liveness.on_round(ROUND, {"a": READY})
    for _ in range(ROUNDS_MAX - 1):
        assert liveness.on_round(ROUND, {}) == []
    for _ in range(50):
        assert liveness.on_round(STANDSTILL, {}) == []
    assert [each.name for each in liveness.on_round(ROUND, {})] == ["a"]


rounds = st.lists(
    st.tuples(
        st.sampled_from([ROUND, ROUND, AWAY, STANDSTILL]),
        st.dictionaries(st.sampled_from(["a", "b", "nats"]), st.sampled_from(["starting", READY])),
    ),
    max_size=120,
)


@given(rounds)
def test_nobody_is_blamed_who_answered_lately_or_could_not(
    told: list[tuple[Round, dict[str, str]]],
) -> None:
    """Against a slow reading of the history."""
    liveness = deployment("a", "b", servers=("nats",))
    history: list[tuple[Round, dict[str, str]]] = []
    blamed: set[str] = set()
    for heard, states in told:
        history.append((heard, states))
        stuck = {each.name for each in liveness.on_round(heard, states)}
        expected = {
            name
            for name in ("a", "b", "nats")
            if any(said.get(name) == READY for _, said in history)
            and num_missed(history, name) >= ROUNDS_MAX
        }
        assert stuck == expected - blamed
        blamed |= stuck


def num_missed(history: list[tuple[Round, dict[str, str]]], name: str) -> int:
    """Rounds that count since the last answer, or since NATS was away."""
    count = 0
    for heard, states in reversed(history):
        if name in states or (name != "nats" and not heard.is_passed_on):
            break
        count += heard is not STANDSTILL
    was_ready_before = any(said.get(name) == READY for _, said in history)
    return count if was_ready_before else 0
