"""When what is on its way will be here, as it is forecast."""

import numpy as np

from services.worker.core.kv.flights import MARGIN, Flight, Flights
from services.worker.core.kv.pages import NO_PAGE, Block, Pages

PAGE_NS = 100
NOW_NS = 1000


def table(*rows: list[int]) -> Pages:
    return np.array(rows, np.int32)


def flight() -> Flight:
    return Flight(Block(0, 2), 1)


def forecast(flights: Flights, *rows: list[int]) -> list[float]:
    """From now, without the margin."""
    told = flights.arrivals(table(*rows), PAGE_NS, NOW_NS)
    return [(at_ns - NOW_NS) / MARGIN if at_ns else 0 for at_ns in told]


def test_loads_come_one_after_the_other_low_layers_of_all_first() -> None:
    flights = Flights(8, 2)
    flights.begin([flight()], table([0, 1]), [0, 0])
    assert forecast(flights, [0, 1]) == [PAGE_NS, 2 * PAGE_NS]
    flights.begin([flight(), flight()], table([2, 3], [4, 5]), [0, 0])
    assert forecast(flights, [0, 1]) == [3 * PAGE_NS, 6 * PAGE_NS]
    flights.end([2, 4])
    assert forecast(flights, [0, 1]) == [PAGE_NS, 4 * PAGE_NS]
    flights.begin_prefetch([flight()], 0, [6], 0)
    assert forecast(flights, [0, 1]) == [PAGE_NS, 4 * PAGE_NS], "they come behind"
    flights.end([6, 1])
    assert forecast(flights, [0, 1]) == [PAGE_NS, 0], "the other is here"


def test_no_layer_is_copied_before_it_was_promised_to_be_in_the_arena() -> None:
    flights = Flights(8, 2)
    flights.begin([flight()], table([0, NO_PAGE]), [NOW_NS + 5000, 0])
    flights.begin([flight()], table([2, 3]), [0, NOW_NS + 700])
    assert forecast(flights, [2, 3]) == [2 * PAGE_NS, 700 + PAGE_NS]
    assert forecast(flights, [0, 1]) == [5000 + PAGE_NS, 0]
    assert forecast(flights, [0, 1], [2, 3]) == [5000 + 2 * PAGE_NS] * 2
    assert flights.of(table([0, 1], [2, 3])) == [[0, 2], [3]]
