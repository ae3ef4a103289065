"""How many connections come from one address, and how many choices are generated at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.http.address_limits import AddressLimits, network_of
from services.frontend.core.limits.capacity import Slots

HOSTS = ["10.0.0.1", "10.0.0.2", "::1", "2001:db8::1", "2001:db8::2", "fe80::1%eth0", None]


@given(st.lists(st.sampled_from(HOSTS), max_size=40), st.integers(1, 4))
def test_as_many_as_allowed_a_place_and_none_is_left_over(
    hosts: list[str | None], per_address_max: int
) -> None:
    crowd, inside = AddressLimits(per_address_max, 1000), list[str | None]()
    for host in hosts:
        num = sum(1 for h in inside if h is not None and host and network_of(h) == network_of(host))
        assert crowd.enter(host) == (host is None or num < per_address_max)
        if host is None or num < per_address_max:
            inside.append(host)
    for host in inside:
        crowd.leave(host)
    assert len(crowd) == 0


def test_without_a_limit_all_are_let_in() -> None:
    crowd = AddressLimits(0, 10_000)
    assert all(crowd.enter("10.0.0.1") for _ in range(5_000))


def test_crowds_leave_room_to_other_addresses() -> None:
    crowd = AddressLimits(500, 800)
    assert sum(crowd.enter(f"10.0.0.{number % 3}") for number in range(1500)) == 700
    assert all(crowd.enter(f"10.0.1.{number % 10}") for number in range(80))
    assert not crowd.enter("10.0.1.0"), "it has its few"
    assert sum(crowd.enter(f"10.0.2.{number}") for number in range(50)) == 20
    crowd.leave("10.0.0.0")
    assert crowd.enter("10.0.3.1") and not crowd.enter("10.0.3.2")


def test_slots_are_given_back() -> None:
    slots = Slots(8)
    assert slots.take(5) and not slots.take(4) and slots.take(3)
    slots.give(5)
    assert slots.take(5)
    slots.give(8)
    with pytest.raises(AssertionError):
        slots.give(1)
