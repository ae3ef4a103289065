"""What is learnt of returns: which sequences are one chain, and how likely which returns when."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.blocks import BlockKey
from shared.eviction import UNKNOWN_KIND, Guard, ReturnModel, bin_of, returns
from shared.eviction.hazard import NUM_BINS
from shared.eviction.returns import ARRIVAL_NS, TURN_NS
from tests.tables import largest_table

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


def keys(name: object, num: int, first: int = 0) -> list[BlockKey]:
    """Blocks of a sequence from `first` on."""
    return [BlockKey(f"{name}/{at}".encode()) for at in range(first, num)]


def here(num: int) -> list[tuple[Guard, int]]:
    """So many of the first blocks are in a tier."""
    return [(Guard(1000), num)]


def turn(
    model: ReturnModel, blocks: list[BlockKey], at_ns: int, first: int = 0, num_here: int = 0
) -> None:
    """A turn that needs and uses these, and is over at once."""
    model.arrive(blocks, at_ns, first, here(num_here))
    model.grow(blocks, at_ns, first)


def chains(model: ReturnModel) -> list[tuple[int, int, int]]:
    """Turns, blocks and shared blocks of each, as they stand by last use."""
    own = [each for each in model._chains.values() if not each.is_shared]
    return [(each.num_turns, each.num_blocks, each.num_shared) for each in own]


def num_returned(model: ReturnModel) -> int:
    return int(model._samples._is_return.sum())


def test_a_chain_is_recognized_after_its_blocks_are_gone() -> None:
    """Nothing of it is here, and the caller names no session."""
    model = ReturnModel()
    turn(model, keys("a", 40), 0)
    model.arrive(keys("a", 50), MINUTE_NS)
    model.grow(keys("a", 52), MINUTE_NS)
    assert chains(model) == [(2, 52, 0)] and num_returned(model) == 1


@pytest.mark.parametrize("num_lacking", [1, 2, 3])
def test_without_its_last_blocks(num_lacking: int) -> None:
    """As what was generated is not always sent back as it was: up to about an eighth."""
    model = ReturnModel()
    turn(model, keys("a", 40), 0)
    again = keys("a", 40 - num_lacking) + keys("b", 48, 40 - num_lacking)
    turn(model, again, MINUTE_NS)
    assert [num_turns for num_turns, _, _ in chains(model)] == [2]


def test_by_its_last_blocks_alone() -> None:
    """A pool has the first, and asks for the rest."""
    model = ReturnModel()
    turn(model, keys("a", 40), 0)
    turn(model, keys("a", 44, 30), MINUTE_NS, first=30)
    assert chains(model) == [(2, 44, 0)] and num_returned(model) == 1


def test_what_begins_alike_and_goes_on_otherwise_shares_that() -> None:
    model = ReturnModel()
    prompt = keys("system", 32)
    turn(model, prompt + keys("a", 20), 0)
    for number, name in enumerate("bcd", 1):
        turn(model, prompt + keys(name, 20), number * MINUTE_NS, num_here=32)
        kinds = model.kinds_of(prompt + keys(name, 20))
        assert kinds is not None and kinds.num_shared == 32
        assert kinds.of(31) == kinds.shared != kinds.own == kinds.of(32)
    assert chains(model) == [(1, 52, 0)] + [(1 + 32 // 52, 52, 32)] * 3
    shared = [each for each in model._chains.values() if each.is_shared]
    assert [(each.num_turns, each.num_blocks) for each in shared] == [(3, 32)]
    turn(model, prompt + keys("b", 30), 9 * MINUTE_NS)
    assert (2, 62, 32) in chains(model), "it continues its own"


def test_growth_in_several_commits_is_one_turn() -> None:
    model = ReturnModel()
    model.arrive(keys("a", 30), 0)
    model.grow(keys("a", 39), 39 * MINUTE_NS)  # it is a slow one
    for number in range(40, 50):
        model.grow(keys("a", number), 39 * MINUTE_NS + (number - 39) * (TURN_NS - 1))
    assert chains(model) == [(1, 49, 0)] and not num_returned(model)
    model.grow(keys("a", 50), 60 * MINUTE_NS)
    assert chains(model) == [(2, 50, 0)] and num_returned(model) == 1


@pytest.mark.parametrize("num_done", [1, 20, 39])
def test_a_turn_of_which_a_part_is_done_is_the_same_turn(num_done: int) -> None:
    """As the rest is not written yet when its worker tells what it used."""
    model = ReturnModel()
    model.arrive(keys("a", 40), 0)
    kinds = model.grow(keys("a", num_done), SECOND_NS)
    assert chains(model) == [(1, 40, 0)]
    assert kinds.num_shared == 0 and model.kinds_of(keys("a", 40)) == kinds
    turn(model, keys("a", 44), MINUTE_NS)
    assert chains(model) == [(2, 44, 0)] and num_returned(model) == 1


def test_a_turn_that_asks_again_at_once_does_not_return() -> None:
    model = ReturnModel()
    model.arrive(keys("a", 40), 0)
    model.arrive(keys("a", 40), TURN_NS - 1)
    model.grow(keys("a", 40), TURN_NS)
    model.arrive(keys("a", 40), TURN_NS + ARRIVAL_NS - 1)
    assert chains(model) == [(1, 40, 0)] and not num_returned(model)


def test_returns_are_seen_though_no_turn_is_told_to_be_over() -> None:
    model = ReturnModel()
    for number in range(5):
        model.arrive(keys("a", 40 + number), number * MINUTE_NS)
    assert chains(model) == [(5, 44, 0)] and num_returned(model) == 4


def test_of_what_is_not_known_no_kind_is_told() -> None:
    model = ReturnModel()
    turn(model, keys("a", 40), 0)
    assert model.kinds_of(keys("b", 40)) is None
    assert model.kinds_of(keys("a", 40)) is not None
    rates = [model.index(UNKNOWN_KIND, at) for at in range(20)]
    assert rates == sorted(set(rates), reverse=True), "what is older goes first"


def test_one_timers_are_worth_less_than_what_returns() -> None:
    """Agents' sessions come back after a minute, time and again; others never do."""
    model, now_ns = ReturnModel(), 0
    for number in range(400):
        now_ns += 15 * SECOND_NS
        turn(model, keys(f"one {number}", 20), now_ns)
        session = number % 4
        turn(model, keys(f"many {session}", 20 + number // 4), now_ns)
    once = model.kinds_of(keys("one 399", 20))
    again = model.kinds_of(keys("many 3", 119))
    assert once is not None and again is not None
    for age_s in (0, 10, 30, 50):
        age_bin = bin_of(age_s * SECOND_NS)
        assert model.index(again.own, age_bin) > 10 * model.index(once.own, age_bin)
    near, far = (model.index(again.own, bin_of(s * SECOND_NS)) for s in (40, 600))
    assert near > model.index(again.own, 0), "the nearer it is, the more it is worth"
    assert far < near / 10, "and past that, little"


def test_what_is_shared_returns_as_often_as_it_is_used() -> None:
    model = ReturnModel()
    prompt = keys("system", 32)
    for number in range(300):
        turn(model, prompt + keys(number, 20), number * 10 * SECOND_NS, num_here=32)
    kinds = model.kinds_of(prompt + keys(299, 20))
    assert kinds is not None and kinds.num_shared == 32
    assert model.index(kinds.shared, 0) > 20 * model.index(kinds.own, 0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "grow", "kinds_of"]),
        st.integers(0, 12),  # of which sequence
        st.integers(0, 4),  # blocks before it that others have, too
        st.integers(1, 40),
        st.integers(0, 30),  # blocks before those named
        st.integers(0, 200),  # seconds until then
    ),
    max_size=120,
)


@settings(deadline=None, max_examples=60)
@given(steps)
def test_tables_are_bounded_and_agree_whatever_comes(
    steps: list[tuple[str, int, int, int, int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for table, most in [("CHAINS_MAX", 6), ("SAMPLES_MAX", 16), ("KINDS_MAX", 8)]:
            patch.setattr(returns, table, most)
        patch.setattr(returns, "ANCHORS_MAX", 5)
        patch.setattr(returns, "REFIT_MIN", 3)
        model, now_ns = ReturnModel(), 0
        for call, name, num_shared, num, first, pause_s in steps:
            now_ns += pause_s * SECOND_NS
            blocks = (keys("all", num_shared) + keys(name, num + first))[first:]
            if call == "kinds_of":
                model.kinds_of(blocks)
            elif call == "grow":
                model.grow(blocks, now_ns, first)
            else:
                model.arrive(blocks, now_ns, first, here(min(num_shared, num)))
            check_tables(model)


def check_tables(model: ReturnModel) -> None:
    samples = model._samples
    assert len(model._chains) <= 6 and len(samples._paths) <= 8 + 1
    assert all(len(ids) <= 8 for ids in samples._ids) and len(samples._indices) <= 9
    anchors = [(key, each) for each in model._chains.values() for key in each.anchors]
    assert {key: id(each) for key, each in anchors} == {
        key: id(each) for key, each in model._by_key.items()
    }
    assert len(anchors) == len(model._by_key)
    for each in model._chains.values():
        assert len(each.anchors) <= 5
        assert each.num_shared <= each.num_blocks
        assert all(model.index(each.kind, at) >= 0 for at in range(NUM_BINS))


def test_memory_does_not_grow_with_what_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in [("CHAINS_MAX", 50), ("SAMPLES_MAX", 64), ("KINDS_MAX", 40)]:
        monkeypatch.setattr(returns, name, most)
    model, random = ReturnModel(), Random(1)
    for number in range(3000):
        prompt = keys(f"agent {random.randrange(60)}", 8)
        turn(model, prompt + keys(random.randrange(1000), random.randint(1, 60)), number * 10**9)
    assert len(model._chains) == 50
    assert largest_table(model) <= 50 * returns.ANCHORS_MAX


def test_a_chain_that_returns_does_not_make_room_for_what_it_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the one used longest ago, and its shared part is forgotten."""
    monkeypatch.setattr(returns, "CHAINS_MAX", 2)
    model, prompt = ReturnModel(), keys("system", 32)
    turn(model, prompt + keys("a", 20), 0)
    turn(model, prompt + keys("b", 20), MINUTE_NS, num_here=32)
    turn(model, keys("c", 20), 2 * MINUTE_NS)
    turn(model, prompt + keys("b", 22), 3 * MINUTE_NS)
    assert (2, 54, 32) in chains(model)
