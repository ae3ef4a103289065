"""Adapters that hosts fetch ahead."""

from services.kvstore.core import popularity
from services.kvstore.core.popularity import HALF_LIFE_NS, RETRY_NS, TABLE_MAX, Popularity


def nowhere(_: str) -> bool:
    return False


def test_what_is_used_much_is_wanted_once() -> None:
    known = Popularity()
    assert known.on_used({"a": 7, "b": 1}, 0, nowhere) == []
    assert known.on_used({"a": 1, "b": 20}, 0, nowhere) == ["b", "a"]
    assert known.on_used({"a": 9}, RETRY_NS - 1, nowhere) == [], "it is being fetched, or failed"
    assert known.on_used({"a": 9}, RETRY_NS, nowhere) == ["a"]
    assert known.on_used({"c": 9}, 0, lambda name: name == "c") == [], "it is here"


def test_old_uses_count_less() -> None:
    """One in a half-life adds up to two."""
    known = Popularity()
    for number in range(100):
        assert known.on_used({"a": 3}, number * HALF_LIFE_NS, nowhere) == []
    assert known.on_used({"a": 3}, 99 * HALF_LIFE_NS, nowhere) == ["a"]


def test_clocks_that_go_back_and_hostile_counts_do_no_harm() -> None:
    known = Popularity()
    known.on_used({"a": 5}, 1_000, nowhere)
    assert known.on_used({"a": -100}, 0, nowhere) == []
    assert known.on_used({"a": 3}, 0, nowhere) == ["a"]


def test_the_table_is_bounded_and_keeps_what_is_used() -> None:
    known = Popularity()
    for number in range(2 * TABLE_MAX):
        known.on_used({f"n{number}": 1}, 0, nowhere)
        if number % 1000 == 0:
            known.on_used({"a": 0}, 0, nowhere)
    assert len(known) == TABLE_MAX == popularity.TABLE_MAX
    assert known.on_used({"a": 8}, 0, nowhere) == ["a"]
