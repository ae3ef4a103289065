"""So many bytes a second, and no more than was saved up at once."""

import math

from shared.line import Line

SECOND_NS = 1_000_000_000


def test_no_more_is_saved_up_than_it_may_be() -> None:
    line = Line(1e9, SECOND_NS)
    assert not line.busy_ns(0)
    assert line.send(10 * SECOND_NS, 1000 * SECOND_NS) == 1009 * SECOND_NS
    assert line.busy_ns(1000 * SECOND_NS) == 9 * SECOND_NS
    assert not line.busy_ns(1009 * SECOND_NS)


def test_at_the_start_all_of_it_is_saved_up() -> None:
    assert Line(1e9, SECOND_NS).send(3 * SECOND_NS, 0) == 2 * SECOND_NS


def test_any_number_takes_no_time() -> None:
    line = Line(math.inf, SECOND_NS)
    line.send(1 << 60, 5)
    assert not line.busy_ns(5)
