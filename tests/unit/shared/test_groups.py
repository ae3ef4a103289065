"""Many small things in few messages."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shared.groups import in_groups


@given(st.lists(st.integers(0, 20)), st.integers(1, 30), st.integers(1, 5))
def test_groups_keep_the_order_fit_and_could_not_be_fewer(
    sizes: list[int], room: int, num_max: int
) -> None:
    groups = in_groups(sizes, int, room, num_max)
    assert [size for group in groups for size in group] == sizes
    for group in groups:
        assert 0 < len(group) <= num_max
        assert sum(group) <= room or len(group) == 1
    for group, after in pairwise(groups):
        assert len(group) == num_max or sum(group) + after[0] > room
