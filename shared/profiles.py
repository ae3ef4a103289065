"""Latency profiles: how long a forward pass takes, as a function of its batch; used to emulate and
to predict.

A pass over a mixed batch is modelled as ``base + per_prefill_token * new prompt tokens + per_decode
* decoding turns + per_context_token * KV tokens read``, all linear, as the deferred-batching paper
and CaraServe find (R^2 0.96 and up).
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shared.errors import ConfigError

ELEMENT_BYTES = 4  # in which emulated pages are written


def kv_bytes(*, num_layers: int, num_kv_heads: int, head_size: int, dtype_bytes: int = 2) -> int:
    """Keys and values of one token in all layers.

    >>> kv_bytes(num_layers=32, num_kv_heads=8, head_size=128)
    131072
    """
    return 2 * num_layers * num_kv_heads * head_size * dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyProfile:
    """A model on a device. Times in milliseconds.

    Attributes:
        base_ms: any pass: weights read once, launches.
        prefill_ms_per_token: each new prompt token.
        decode_ms_per_turn: each decoding turn.
        context_ms_per_token: each token of history that attention reads.
        kv_read_gb_per_s: bandwidth at which history comes up from the arena.
        kv_bytes_per_token: of all layers, which have the same share of it.
    """

    name: str
    base_ms: float
    prefill_ms_per_token: float
    decode_ms_per_turn: float
    context_ms_per_token: float = 0.0
    kv_read_gb_per_s: float = 20.0
    num_layers: int = 32
    kv_bytes_per_token: int = kv_bytes(num_layers=32, num_kv_heads=8, head_size=128)
    max_model_len: int = 131_072
    num_kv_tokens: int = 400_000  # what the device's memory holds beside the weights

    def step_ms(
        self, num_prefill_tokens: int, num_decodes: int, num_context_tokens: int = 0
    ) -> float:
        """Duration of one pass, ms.

        >>> PROFILES["zero"].step_ms(1000, 8)
        0.0
        """
        return (
            self.base_ms
            + self.prefill_ms_per_token * num_prefill_tokens
            + self.decode_ms_per_turn * num_decodes
            + self.context_ms_per_token * num_context_tokens
        )

    def page_bytes(self, block_tokens: int) -> int:
        """KV of one block in one layer, in whole elements of four bytes a token.

        >>> PROFILES["a100-llama3-8b"].page_bytes(64)
        262144
        """
        num_elements = -(-self.kv_bytes_per_token // (self.num_layers * ELEMENT_BYTES))
        return block_tokens * ELEMENT_BYTES * max(num_elements, 1)


# KV shapes are those of the models' config.json: Llama 3 and 3.1 8B have 32 layers with 8 KV heads
# of 128 (grouped queries), Llama 2 13B has 40 with 40 of 128 (every head its own).
# Times follow from the devices' data sheets (NVIDIA: A100 80 GB SXM 2,039 GB/s and 312 Tflop/s in
# bf16; H100 SXM 3,352 and 989), of which a server reaches about 75% and 55%: weights and context
# are read at that bandwidth, two flops a weight are done for each prompt token at that rate.
# `tests/unit/shared/test_profiles.py` does the sums. What a decoding turn takes beside its context
# (sampling, launches) is a guess. SYMPHONY's Figure 2 has 32 turns take nearly twice as long as 8.
PROFILES = {
    profile.name: profile
    for profile in (
        LatencyProfile(
            name="zero", base_ms=0.0, prefill_ms_per_token=0.0, decode_ms_per_turn=0.0,
            num_layers=2, kv_bytes_per_token=64, max_model_len=8192, num_kv_tokens=2_000_000,
        ),
        LatencyProfile(
            name="a100-llama3-8b", base_ms=10.5, prefill_ms_per_token=0.094,
            decode_ms_per_turn=0.05, context_ms_per_token=0.000086,
        ),
        LatencyProfile(  # the same sizes, trained on
            name="a100-llama3.1-8b", base_ms=10.5, prefill_ms_per_token=0.094,
            decode_ms_per_turn=0.05, context_ms_per_token=0.000086,
        ),
        LatencyProfile(
            name="a100-llama2-13b", base_ms=17.0, prefill_ms_per_token=0.152,
            decode_ms_per_turn=0.06, context_ms_per_token=0.00054, num_layers=40,
            kv_bytes_per_token=kv_bytes(num_layers=40, num_kv_heads=40, head_size=128),
            max_model_len=32_768, num_kv_tokens=55_000,
        ),
        LatencyProfile(
            name="h100-llama3-8b", base_ms=6.2, prefill_ms_per_token=0.030, decode_ms_per_turn=0.03,
            context_ms_per_token=0.000052,
        ),
    )
}  # fmt: skip


def load_profile(name_or_path: str) -> LatencyProfile:
    """A named profile, or one from a JSON file.

    Raises:
        ConfigError: neither; lists the known names.
    """
    if name_or_path in PROFILES:
        return PROFILES[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise ConfigError(
            f"no latency profile {name_or_path!r}: use one of {', '.join(PROFILES)} or a JSON file"
        )
    try:
        return TypeAdapter(LatencyProfile).validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigError(f"{path}: {error.errors(include_url=False)[0]['msg']}") from None
