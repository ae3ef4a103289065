"""One line for many equal troubles."""

from shared.runtime.sparsely import Sparsely


def test_the_first_is_told_then_one_an_interval_with_the_number_of_all() -> None:
    sparsely = Sparsely(every_ns=100)
    told = [sparsely.hear("refused", now_ns) for now_ns in range(0, 250, 10)]
    assert {number * 10: num for number, num in enumerate(told) if num} == {0: 1, 100: 10, 200: 10}


def test_kinds_are_told_apart() -> None:
    sparsely = Sparsely(every_ns=100)
    assert [sparsely.hear(kind, 5) for kind in "aba"] == [1, 1, 0]


def test_after_the_end_the_next_is_a_first_one() -> None:
    sparsely = Sparsely(every_ns=100)
    assert not sparsely.clear()
    sparsely.hear("a", 5)
    sparsely.hear("a", 6)
    assert sparsely.clear()
    assert sparsely.hear("a", 7) == 1
