"""Many small things in few messages, none larger than a message may be."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def in_groups(
    things: Iterable[T], size_of: Callable[[T], int], room: int, num_max: int | None = None
) -> list[list[T]]:
    """`things` in their order, in as few groups as hold at most `room` and `num_max` each. One that
    is larger than `room` is alone in its group.

    >>> in_groups([3, 3, 3, 9, 1], int, room=6)
    [[3, 3], [3], [9], [1]]
    """
    groups: list[list[T]] = []
    left = 0
    for thing in things:
        size = size_of(thing)
        if not groups or size > left or len(groups[-1]) == num_max:
            groups.append([])
            left = room
        groups[-1].append(thing)
        left -= size
    return groups
