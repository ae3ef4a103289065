"""The order in which a full disk gives up blocks by what they are worth, beside all of them,
sorted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from shared.eviction import ReturnModel, bin_of
from tests.unit.kvstore.core.disk.test_disk_tier import SIZE, name, not_busy, numbers

NUM_KINDS, NUM_AGES = 4, 12
AGES_NS = [0, *(1 << (28 + number) for number in range(NUM_AGES - 1))]  # one in each bin
NOW_NS = AGES_NS[-1]


class Rates(ReturnModel):
    """Of each kind, they rise with age up to some bin, and fall from there on."""

    def index(self, kind: int, age_bin: int) -> float:
        return 100.0 * kind / NUM_KINDS - abs(age_bin - 3 * kind)


blocks = st.lists(
    st.tuples(
        st.integers(0, NUM_AGES - 1),
        st.integers(0, NUM_KINDS - 1),  # when it comes
        st.integers(0, NUM_KINDS - 1),  # later on
        st.sampled_from([0, 1 << 60]),  # its expiry
    ),
    max_size=40,
)


@settings(deadline=None)
@given(blocks, st.lists(st.integers(0, 39)), st.integers(0, 40))
def test_what_is_worth_least_goes_first(
    blocks: list[tuple[int, int, int, int]], used: list[int], num_gone: int
) -> None:
    """Turns that used some of them now were of another kind."""
    rates = Rates()
    worth: dict[int, float] = {}
    disk = DiskTier(10**9, returns=rates)
    blocks = sorted(blocks, reverse=True)
    for number, (age, kind, _, expiry_ns) in enumerate(blocks):
        at_ns = NOW_NS - AGES_NS[age]
        disk.add(
            StoredBlock(
                name(number), 1, SIZE, SIZE, at_ns, at_ns, expiry_ns=expiry_ns, return_kind=kind
            )
        )
        worth[number] = rates.index(kind, bin_of(AGES_NS[age]))
    for number in used:
        if number < len(blocks):
            disk.use([name(number)], NOW_NS, 1 << 60)
            disk.set_kind(name(number), blocks[number][2])
            worth[number] = rates.index(blocks[number][2], 0)
    gone = numbers(disk.to_make_room(num_gone * SIZE, not_busy, NOW_NS))
    assert len(set(gone)) == len(gone) == min(num_gone, len(worth))
    assert [worth[number] for number in gone] == sorted(worth.values())[: len(gone)]
