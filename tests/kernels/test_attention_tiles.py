"""How the Triton kernels' work is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.paged_attention.tiles import SPLITS_MAX, choose_splits, choose_tiles


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 160, 256])
@pytest.mark.parametrize("group", [1, 3, 8, 20, 71])
@pytest.mark.parametrize("block_tokens", [16, 64])
def test_a_tile_holds_a_group_and_lies_in_a_page(
    decode: bool, element_bytes: int, head_dim: int, group: int, block_tokens: int
) -> None:
    tiles = choose_tiles(
        decode=decode,
        element_bytes=element_bytes,
        head_dim=head_dim,
        group=group,
        block_tokens=block_tokens,
    )
    assert tiles.rows >= group
    assert block_tokens % tiles.keys == 0
    # What the matrix units take, and what Triton can make a range of.
    assert min(tiles.rows, tiles.keys) >= 16
    assert tiles.rows.bit_count() == tiles.keys.bit_count() == 1


@given(
    decode=st.booleans(),
    num_programs=st.integers(1, 5000),
    context_len_max=st.integers(0, 200_000),
    keys=st.sampled_from([16, 32, 64]),
    multiprocessors=st.integers(1, 200),
)
def test_splits_fill_the_device_and_are_worth_combining(
    decode: bool, num_programs: int, context_len_max: int, keys: int, multiprocessors: int
) -> None:
    splits = choose_splits(
        decode=decode,
        num_programs=num_programs,
        context_len_max=context_len_max,
        keys=keys,
        multiprocessors=multiprocessors,
    )
    assert 1 <= splits.count <= SPLITS_MAX
    assert 1 <= splits.share_min <= splits.share_max
    if context_len_max <= splits.share_min * keys:
        assert splits.count == 1
    if num_programs >= 2 * multiprocessors and not decode:
        assert splits.count == 1, "a full device wants no partial results"
    # Any context gets as many programs as it wants: none is given more than its share.
    for num_tiles in (1, -(-context_len_max // keys) // 2, -(-context_len_max // keys)):
        share = max(-(-num_tiles // splits.wanted), splits.share_min)
        share = min(share, splits.share_max)
        assert -(-num_tiles // share) <= splits.count or splits.count == SPLITS_MAX


def test_a_long_context_beside_many_others_is_still_shared() -> None:
    splits = choose_splits(
        decode=True, num_programs=512, context_len_max=32_768, keys=64, multiprocessors=132
    )
    assert splits.wanted == 1 and splits.count == 16
