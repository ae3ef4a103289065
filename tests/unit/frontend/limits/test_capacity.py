"""What a growing body takes of a room."""

import pytest

from services.frontend.core.limits.capacity import Capacity, HeldCapacity
from shared.errors import NoCapacity


def test_a_hold_grows_and_ends() -> None:
    capacity = Capacity(0, 100)
    with HeldCapacity(capacity, free_bytes=10) as held:
        for num_bytes, num_taken in ((3, 0), (10, 0), (11, 11), (60, 60)):
            held.grow_to(num_bytes)
            assert capacity.num_bytes == num_taken
        with HeldCapacity(capacity, free_bytes=10) as other:
            other.grow_to(40)
            with pytest.raises(NoCapacity):
                other.grow_to(41)
            assert capacity.num_bytes == 100
        assert capacity.num_bytes == 60
    assert capacity.num_bytes == 0


def test_a_hold_is_given_back_once_or_moved() -> None:
    capacity = Capacity(0, 100)
    with HeldCapacity(capacity, free_bytes=10) as held:
        held.grow_to(60)
        other = held.move()
        assert capacity.num_bytes == 60
    assert capacity.num_bytes == 60, "it is the other's"
    other.give_back()
    other.give_back()
    assert capacity.num_bytes == 0
