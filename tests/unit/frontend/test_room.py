"""What a growing body takes of a room."""

import pytest

from services.frontend.core.room import Hold, Room
from shared.errors import NoCapacity


def test_a_hold_grows_and_ends() -> None:
    room = Room(0, 100)
    with Hold(room, free_bytes=10) as hold:
        for num_bytes, held in ((3, 0), (10, 0), (11, 11), (60, 60)):
            hold.grow_to(num_bytes)
            assert room.num_bytes == held
        with Hold(room, free_bytes=10) as other:
            other.grow_to(40)
            with pytest.raises(NoCapacity):
                other.grow_to(41)
            assert room.num_bytes == 100
        assert room.num_bytes == 60
    assert room.num_bytes == 0


def test_a_hold_is_given_back_once_or_moved() -> None:
    room = Room(0, 100)
    with Hold(room, free_bytes=10) as hold:
        hold.grow_to(60)
        other = hold.move()
        assert room.num_bytes == 60
    assert room.num_bytes == 60, "it is the other's"
    other.give_back()
    other.give_back()
    assert room.num_bytes == 0
