"""Which connection loses its place: of the address with the most, first one that said nothing."""

from hypothesis import example, given
from hypothesis import strategies as st

from services.kvstore.peers.unproven import Unproven, group_of
from tests.tables import largest_table

MAX = 6
steps = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "hear", "remove", "take"]), st.integers(0, 20)),
    max_size=60,
)

HEARD_OUT_OF_ORDER = [  # all of an address have sent something, the third before the first
    *[("add", 0)] * 4, ("add", 1), ("add", 2), ("hear", 3), ("add", 1), ("hear", 0), ("hear", 1),
    ("take", 0),
]  # fmt: skip


def first_to_go(kept: dict[int, str], active: set[int]) -> int:
    """Slow and obvious."""
    groups = list(kept.values())
    crowded = max(set(groups), key=lambda group: (groups.count(group), group))
    own = [number for number, group in kept.items() if group == crowded]
    return next((number for number in own if number not in active), own[0])


@given(steps)
@example(HEARD_OUT_OF_ORDER)
def test_the_most_crowded_address_pays(steps: list[tuple[str, int]]) -> None:
    table, kept, active = Unproven[int](MAX), dict[int, str](), set[int]()
    for number, (step, which) in enumerate(steps):
        some = list(kept)[which % len(kept)] if kept else None
        if step == "add":
            lost = first_to_go(kept, active) if len(kept) == MAX else None
            kept[number] = f"address {which % 4}"
            assert table.add(number, kept[number]) == lost
            kept.pop(-1 if lost is None else lost, None)
        elif some is not None and step == "hear":
            table.hear(some)
            active.add(some)
        elif some is not None and step == "remove":
            table.remove(some)
            del kept[some]
        elif some is not None:
            lost = first_to_go(kept, active)
            assert table.take() == lost
            del kept[lost]
        assert table.all == list(kept)
        assert table.oldest == next(iter(kept), None)
    for _ in kept:
        table.take()
    assert table.take() is None and not largest_table(table)


def test_an_address_with_less_than_its_share_loses_nothing() -> None:
    table = Unproven[str](MAX)
    table.add("honest 1", "a")
    table.add("honest 2", "a")
    lost = {table.add(f"flood {number}", "b") for number in range(1000)}
    assert not {"honest 1", "honest 2"} & lost and len(table) == MAX


def test_addresses_that_one_host_can_choose_are_one() -> None:
    assert group_of("fe80::1%eth0") == group_of("fe80::2") != group_of("fe81::1")
    assert group_of("10.0.0.1") != group_of("10.0.0.2")
    assert group_of("no address") == "no address"
