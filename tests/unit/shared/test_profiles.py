"""Latency profiles: named, or from a file."""

from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.profiles import PROFILES, LatencyProfile, load_profile


def test_a_step_s_time_is_the_sum_of_its_parts() -> None:
    profile = LatencyProfile(
        name="p", base_ms=10.0, prefill_ms_per_token=0.5, decode_ms_per_turn=2.0,
        context_ms_per_token=0.01,
    )  # fmt: skip
    assert profile.step_ms(0, 0) == 10.0
    assert profile.step_ms(100, 3, 1000) == pytest.approx(10.0 + 50.0 + 6.0 + 10.0)


@pytest.mark.parametrize("name", PROFILES)
def test_named_profiles_are_plausible(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.num_kv_tokens > profile.max_model_len or profile.num_kv_tokens > 50_000
    assert profile.step_ms(1000, 8, 1000) >= profile.step_ms(0, 1)


@pytest.mark.parametrize(
    ("name", "page_bytes"),
    [
        ("zero", 2048),
        ("a100-llama3-8b", 64 * 8 * 128 * 2 * 2),  # tokens, KV heads, size, K and V, bf16
        ("h100-llama3-8b", 64 * 8 * 128 * 2 * 2),
        ("a100-llama2-13b", 64 * 40 * 128 * 2 * 2),
    ],
)
def test_a_page_is_what_a_block_takes_in_a_layer(name: str, page_bytes: int) -> None:
    profile = PROFILES[name]
    assert profile.page_bytes(64) == page_bytes
    assert profile.page_bytes(64) * profile.num_layers == 64 * profile.kv_bytes_per_token


@pytest.mark.parametrize(("token_bytes", "page_bytes"), [(8, 64), (9, 128), (0, 64)])
def test_a_page_has_whole_elements_for_each_token(token_bytes: int, page_bytes: int) -> None:
    profile = LatencyProfile(
        name="p", base_ms=0.0, prefill_ms_per_token=0.0, decode_ms_per_turn=0.0, num_layers=2,
        kv_bytes_per_token=token_bytes,
    )  # fmt: skip
    assert profile.page_bytes(16) == page_bytes


def test_a_profile_can_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(
        '{"name": "mine", "base_ms": 1, "prefill_ms_per_token": 0.1, "decode_ms_per_turn": 0.2}'
    )
    assert load_profile(str(path)).step_ms(10, 0) == pytest.approx(2.0)


@pytest.mark.parametrize("text", ["", "{}", '{"name": "x", "base_ms": "slow"}'])
def test_a_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"wrong\.json"):
        load_profile(str(path))


def test_an_unknown_profile_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match=r"'nonsense'.*zero.*h100-llama3-8b"):
        load_profile("nonsense")


@pytest.mark.parametrize(
    ("name", "weights_b", "gb_per_s", "tflops", "memory_gb"),
    [
        ("a100-llama3-8b", 8.03, 2039, 312, 80),
        ("a100-llama3.1-8b", 8.03, 2039, 312, 80),
        ("a100-llama2-13b", 13.02, 2039, 312, 80),
        ("h100-llama3-8b", 8.03, 3352, 989, 80),
    ],
)
def test_named_profiles_follow_from_models_and_data_sheets(
    name: str, weights_b: float, gb_per_s: float, tflops: float, memory_gb: float
) -> None:
    """Of the devices' own numbers a server reaches so much."""
    bandwidth, rate = 0.75 * gb_per_s * 1e9, 0.55 * tflops * 1e12
    profile = PROFILES[name]
    weights_bytes = 2 * weights_b * 1e9
    assert profile.base_ms == pytest.approx(1e3 * weights_bytes / bandwidth, rel=0.05)
    assert profile.prefill_ms_per_token == pytest.approx(2e12 * weights_b / rate, rel=0.05)
    context_ms = 1e3 * profile.kv_bytes_per_token / bandwidth
    assert profile.context_ms_per_token == pytest.approx(context_ms, rel=0.05)
    left_bytes = 0.9 * memory_gb * 1e9 - weights_bytes
    assert profile.num_kv_tokens == pytest.approx(left_bytes / profile.kv_bytes_per_token, rel=0.1)
