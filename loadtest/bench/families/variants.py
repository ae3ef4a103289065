"""Options of configs that change what is computed, by family.

Sizes are not among them, but where a config has none by default: models are cut anyway.
"""

from collections.abc import Mapping
from typing import Any

Options = Mapping[str, Any]

DEFAULT = "as its config is by default"
DECODER = "is_decoder"

_THETA = {"rope_theta": 10000.0}
_HALF = 64  # frequencies of a head of 128


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, **_THETA, **parameters}}


def _long_rope(num: int, **parameters: Any) -> dict[str, Any]:
    long = [1.0 + 0.5 * at for at in range(num)]
    options = {"original_max_position_embeddings": 4096, "max_position_embeddings": 131072}
    factors = {"short_factor": [1.0] * num, "long_factor": long}
    return options | _rope(
        "longrope", **factors, original_max_position_embeddings=4096, **parameters
    )


ROPES: dict[str, Options] = {
    "linear rope": _rope("linear", factor=4.0),
    "dynamic rope": _rope("dynamic", factor=4.0),
    "yarn rope": _rope("yarn", factor=8.0, original_max_position_embeddings=4096)
    | {"max_position_embeddings": 32768},
    "llama3 rope": _rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    ) | {"max_position_embeddings": 131072},
    "longrope": _long_rope(_HALF, factor=32.0),
}  # fmt: skip

_ALL_ATTENTION = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
_SLIDING = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 12}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
_SAME_SIZES = {
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip

# Families that cannot be made of what their config has by default.
NEEDED: dict[str, Options] = {
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", **_THETA}
            for kind in ("full_attention", "sliding_attention")
        }
    },
    "deepseek_v2": {
        "n_group": 1, "topk_group": 1, "topk_method": "greedy", "num_experts_per_tok": 2,
    },
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "conv", "full_attention"]},
    "ministral": {"head_dim": 128, "num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
    "reformer": {"is_decoder": True},
    "roc_bert": {"is_decoder": True},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
}  # fmt: skip

VARIANTS: dict[str, dict[str, Options]] = {
    "bitnet": {"yarn rope": ROPES["yarn rope"]},
    "blenderbot": {"norms in front": {"normalize_before": True}},
    "cohere": {"norms of queries": {"use_qk_norm": True}},
    "deepseek_v2": {"keys and values of one size": _SAME_SIZES},
    "deepseek_v3": {"keys and values of one size": _SAME_SIZES},
    "doge": {"narrow": {"keep_window_size": 16}},
    "exaone4": {"no window": {**_ALL_ATTENTION, "sliding_window": None}},
    "falcon": {
        "alibi": {"alibi": True},
        "new_decoder_architecture": {"new_decoder_architecture": True, "num_kv_heads": 8},
    },
    "falcon_h1": {"one group": {"mamba_n_groups": 1}},
    "gemma3_text": {
        "use_bidirectional_attention": {"use_bidirectional_attention": True},
        "linear rope in global layers": {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            }
        },
    },
    "gemma4_text": {
        "one size of heads": {"global_head_dim": 256, "num_global_key_value_heads": None},
    },
    "glm4_moe": {"norms of queries": {"use_qk_norm": True}},
    "gpt2": {
        "scale_attn_by_inverse_layer_idx": {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_weights=false": {"scale_attn_weights": False},
        "reorder_and_upcast_attn": {"reorder_and_upcast_attn": True},
    },
    "gpt_bigcode": {"multi_query=false": {"multi_query": False}},
    "gpt_neox": {"use_parallel_residual=false": {"use_parallel_residual": False}},
    "granite": {
        "multipliers": {
            "attention_multiplier": 0.3, "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0, "logits_scaling": 3.0,
        }
    },
    "granitemoehybrid": {
        "attention only": {"num_hidden_layers": 4, "layer_types": ["attention"] * 4},
    },
    "lfm2": {
        "conv layers": {"num_hidden_layers": 3, "layer_types": ["conv", "conv", "full_attention"]}
    },
    "lfm2_moe": {"attention only": _ALL_ATTENTION},
    "llama": {
        **ROPES,
        "biases": {"attention_bias": True, "mlp_bias": True},
        "grouped queries": {"num_key_value_heads": 8},
        "one head of keys": {"num_key_value_heads": 1},
        "heads of 80": {"head_dim": 80},
        "tied embeddings": {"tie_word_embeddings": True},
    },
    "llama4_text": {
        "no temperature tuning": {"attn_temperature_tuning": False},
        "no chunks": {
            "num_hidden_layers": 4, "layer_types": ["full_attention"] * 4,
            "attn_temperature_tuning": False,
        },
    },
    "minimax": {"attention only": _ALL_ATTENTION},
    "minimax_m3_vl_text": {
        "sparse layers": {
            "num_hidden_layers": 2, "layer_types": ["full_attention", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse"],
        }
    },
    "ministral3": {
        "llama_4_scaling_beta": _rope(
            "yarn", factor=8.0, original_max_position_embeddings=4096, beta_fast=32.0,
            beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3,
        ) | {"max_position_embeddings": 32768}
    },
    "mistral": {"no window": {"sliding_window": None}, **ROPES},
    "mixtral": {"window": {"sliding_window": 4096}},
    "mpt": {"no alibi": {"attn_config": {"alibi": False}}},
    "olmo": {"clip_qkv": {"clip_qkv": 8.0}},
    "opt": {
        "projected embeddings": {"word_embed_proj_dim": 512, "hidden_size": 1024},
        "do_layer_norm_before=false": {"do_layer_norm_before": False},
    },
    "phi": {"norms of queries": {"qk_layernorm": True}},
    "phi3": {
        "window": {"sliding_window": 2047},
        "partial rotary": _rope("default", partial_rotary_factor=0.75),
        "longrope": _long_rope(48),
    },
    "phi4_multimodal": {"longrope": _long_rope(48)},
    "phimoe": {
        "window": {"sliding_window": 2047},
        "window of the longest prompt": {"sliding_window": 131072},
        "longrope": _long_rope(_HALF, short_mscale=1.1, long_mscale=1.3),
    },
    "qwen2": {"use_sliding_window": _SLIDING, **ROPES},
    "qwen2_moe": {"use_sliding_window": _SLIDING},
    "qwen3": {"use_sliding_window": _SLIDING, **ROPES},
    "qwen3_moe": {"norm_topk_prob": {**_EXPERTS, "norm_topk_prob": True}},
    "qwen3_next": {"attention only": _ALL_ATTENTION},
    "smollm3": {"use_sliding_window": {"use_sliding_window": True, "sliding_window": 4096}},
    "stablelm": {
        "parallel, norms of queries": {
            "use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True,
        }
    },
    "starcoder2": {"no window": {"sliding_window": None}},
}  # fmt: skip
