"""Block keys: what they tell apart, and how they travel."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.blocks import (
    KEY_BYTES,
    BlockKey,
    chain_keys,
    child_key,
    pack_keys,
    root_key,
    unpack_keys,
)

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=200)
ROOT_KEY = root_key("model", "tenant")


def test_a_key_is_the_same_in_every_release() -> None:
    """Blocks on disk outlive the code that named them."""
    assert ROOT_KEY.hex() == "5f3229de01056f0bfab49920377773f0"
    assert child_key(ROOT_KEY, range(64)).hex() == "fccb77094cfee068377eed2c745dae0e"


@pytest.mark.parametrize(
    "other",
    [
        root_key("other", "tenant"),
        root_key("model", "other"),
        root_key("model", "tenant", "adapter"),
        root_key("model", "tenant", "", "salt"),
        root_key("model", "tenant", "salt"),  # not where it was
        root_key("modelt", "enant"),  # the same letters, cut elsewhere
        root_key("model", "tena", "nt"),
    ],
)
def test_what_must_not_share_kv_has_another_root(other: BlockKey) -> None:
    assert other != ROOT_KEY
    assert len(other) == KEY_BYTES


@given(tokens=TOKENS, block_tokens=st.sampled_from([1, 4, 64]), as_array=st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_chain_is_its_blocks_keys_one_by_one(
    tokens: list[int], block_tokens: int, as_array: bool
) -> None:
    expected, parent = [], ROOT_KEY
    for at in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = child_key(parent, tokens[at : at + block_tokens])
        expected.append(parent)
    given_as = array("i", tokens) if as_array else tokens
    assert chain_keys(ROOT_KEY, given_as, block_tokens) == expected


@given(tokens=TOKENS, more=TOKENS)
@settings(max_examples=50, deadline=None)
def test_a_longer_text_keeps_the_keys_of_its_beginning(tokens: list[int], more: list[int]) -> None:
    short, long = chain_keys(ROOT_KEY, tokens, 4), chain_keys(ROOT_KEY, tokens + more, 4)
    assert len(short) == len(tokens) // 4
    assert long[: len(short)] == short


@given(tokens=st.lists(st.integers(0, 2**31 - 1), min_size=8, max_size=40), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_changed_token_changes_its_block_and_all_after(
    tokens: list[int], data: st.DataObject
) -> None:
    tokens = tokens[: len(tokens) // 4 * 4]
    at = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens[:at], tokens[at] ^ 1, *tokens[at + 1 :]]
    before, after = chain_keys(ROOT_KEY, tokens, 4), chain_keys(ROOT_KEY, changed, 4)
    assert before[: at // 4] == after[: at // 4]
    assert not set(before[at // 4 :]) & set(after[at // 4 :])


def test_equal_blocks_at_different_places_have_different_keys() -> None:
    first, second = chain_keys(ROOT_KEY, [7] * 8, 4)
    assert first != second


@given(st.lists(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES).map(BlockKey), max_size=20))
@settings(max_examples=50, deadline=None)
def test_keys_travel_packed(keys: list[BlockKey]) -> None:
    assert unpack_keys(pack_keys(keys)) == keys


@pytest.mark.parametrize("packed", ["00", "zz" * KEY_BYTES, "0" * (2 * KEY_BYTES + 1)])
def test_what_is_no_packed_keys_is_refused(packed: str) -> None:
    with pytest.raises(ValueError, match=r"hex|whole number"):
        unpack_keys(packed)
