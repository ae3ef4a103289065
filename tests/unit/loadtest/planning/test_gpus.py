"""Profiles that are derived from data sheets: as those that the repository has."""

from dataclasses import replace

import pytest

from loadtest.planning.gpus import GPUS, ModelSizes, derive_profile
from shared.errors import InvalidRequest
from shared.profiles import PROFILES

LLAMA_8B = ModelSizes(
    name="llama", num_weights=8_030_261_248, num_layers=32, num_kv_heads=8, head_size=128,
    dtype_bytes=2, tokens_max=131_072,
)  # fmt: skip
LLAMA_13B = ModelSizes(
    name="llama", num_weights=13_015_864_320, num_layers=40, num_kv_heads=40, head_size=128,
    dtype_bytes=2, tokens_max=32_768,
)  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "gpu", "known"),
    [
        (LLAMA_8B, "a100", "a100-llama3-8b"),
        (LLAMA_13B, "a100", "a100-llama2-13b"),
        (LLAMA_8B, "h100", "h100-llama3-8b"),
    ],
)
def test_a_derived_profile_is_within_a_tenth_of_the_one_at_hand(
    sizes: ModelSizes, gpu: str, known: str
) -> None:
    made, at_hand = derive_profile(sizes, gpu), PROFILES[known]
    for name in ("base_ms", "prefill_ms_per_token", "context_ms_per_token"):
        assert getattr(made, name) == pytest.approx(getattr(at_hand, name), rel=0.05), name
    assert made.num_kv_tokens == pytest.approx(at_hand.num_kv_tokens, rel=0.1)
    assert made.decode_ms_per_turn == pytest.approx(at_hand.decode_ms_per_turn, rel=0.2)
    assert made.kv_bytes_per_token == at_hand.kv_bytes_per_token
    assert (made.num_layers, made.max_model_len) == (at_hand.num_layers, at_hand.max_model_len)


@pytest.mark.parametrize("gpu", GPUS)
def test_every_gpu_that_has_room_gets_a_profile(gpu: str) -> None:
    profile = derive_profile(LLAMA_8B, gpu)
    assert profile.num_kv_tokens > 8000
    assert 0 < profile.base_ms < profile.step_ms(1000, 8, 1000)


def test_float32_weighs_and_takes_twice_as_much() -> None:
    narrow = derive_profile(LLAMA_8B, "h200")
    wide = derive_profile(replace(LLAMA_8B, dtype_bytes=4), "h200")
    assert wide.base_ms == pytest.approx(2 * narrow.base_ms)
    assert wide.prefill_ms_per_token == pytest.approx(2 * narrow.prefill_ms_per_token)
    assert wide.kv_bytes_per_token == 2 * narrow.kv_bytes_per_token


def test_a_model_that_does_not_fit_and_an_unknown_gpu_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"--gpu l4: llama has 26 GB .* 24 GB"):
        derive_profile(LLAMA_13B, "l4")
    with pytest.raises(InvalidRequest, match=r"--gpu tpu: .*a100.*l40s"):
        derive_profile(LLAMA_8B, "tpu")
