"""How long sessions are on a host, whatever comes and goes, in whichever order."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.tiers.arena_only_blocks import ArenaOnlyBlocks
from services.kvstore.core.tiers.host_blocks import HostBlocks
from shared.blocks import BlockKey
from shared.owners import NO_OWNER, OwnerKey

OWNERS = [NO_OWNER, *(OwnerKey(bytes([n]) * len(NO_OWNER)) for n in (1, 2))]
ROOT = BlockKey(b"r" * 16)
# A tree: each block's parent is an earlier one, or the root.
PARENTS = [None, 0, 1, 2, 3, 1, 5, 0]
KEYS = [BlockKey(bytes([n]) * 16) for n in range(len(PARENTS))]
MOVES = st.lists(
    st.tuples(st.integers(0, len(PARENTS) - 1), st.sampled_from(["disk", "memory", "gone"])),
    max_size=40,
)


def block_of(number: int, owners: list[int]) -> StoredBlock:
    parent = PARENTS[number]
    before = ROOT if parent is None else KEYS[parent]
    return StoredBlock(KEYS[number], 1, 1, 1, 1, 1, OWNERS[owners[number]], before)


def leading(here: set[int], owners: list[int], owner: OwnerKey) -> int:
    """Counted block by block."""

    def length(number: int | None) -> int:
        return 0 if number is None or number not in here else length(PARENTS[number]) + 1

    return max((length(each) for each in here if OWNERS[owners[each]] == owner), default=0)


@settings(max_examples=300, deadline=None)
@given(
    owners=st.lists(st.integers(0, 2), min_size=len(PARENTS), max_size=len(PARENTS)), moves=MOVES
)
@example(  # a block on disk, after one in memory, after one on disk that goes
    owners=[0, 0, 0, 1, 0, 0, 0, 0],
    moves=[(1, "disk"), (2, "memory"), (3, "disk"), (1, "gone")],
)
@example(  # after the first block of a sequence came last, a session continues it
    owners=[0, 0, 1, 0, 0, 0, 0, 0], moves=[(1, "disk"), (0, "disk"), (2, "disk")]
)
def test_every_session_is_counted_right_and_every_change_reported(
    owners: list[int], moves: list[tuple[int, str]]
) -> None:
    blocks = HostBlocks(DiskTier(1 << 30), ArenaOnlyBlocks())
    reported: dict[OwnerKey, int] = {}
    blocks.on_change = lambda owner, least: reported.update({owner: least})
    for number, to in moves:
        key, before = KEYS[number], {n for n, each in enumerate(KEYS) if each in blocks}
        reported.clear()
        if to == "disk" and key not in blocks.disk:
            blocks.to_disk(block_of(number, owners))
        elif to == "memory" and key in blocks.disk:
            blocks.to_memory(key, None)
        elif to == "memory" and key not in blocks:
            blocks.add_to_arena_only(block_of(number, owners), None)
        elif to == "gone" and key in blocks:
            (blocks.disk if key in blocks.disk else blocks.arena_only).remove(key)
        here = {n for n, each in enumerate(KEYS) if each in blocks}
        for owner in OWNERS[1:]:
            length = leading(here, owners, owner)
            assert blocks.count_leading(owner) == length
            if length != leading(before, owners, owner):
                assert owner in reported, "nothing would be sent"
                assert reported[owner] in (0, length)
