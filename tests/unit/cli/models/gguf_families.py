"""Tiny models of each family, written as GGUF files as llama.cpp's converter writes them.

Names of tensors are by llama.cpp's own table (package `gguf`), keys and layouts by its converter:
nothing of it is by the tables of the code under test.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from services.worker.models.demo_model import CHAT_TEMPLATE, byte_symbols

VOCAB = 260
SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": VOCAB, "max_position_embeddings": 512,
    "initializer_range": 0.15, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
OFFSET = ("gemma", "gemma2", "gemma3", "nemotron")  # norms are written plus one
PAIRED = ("llama", "smollm3", "granite", "granitemoe", "olmo")  # queries and keys in pairs
PRE_ATTENTION = {
    "query_pre_attn_scalar": 256, "head_dim": 256, "num_attention_heads": 2,
    "num_key_value_heads": 1,
}  # fmt: skip
Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """A model and its file.

    Attributes:
        kind, config: transformers' type, and what differs from `SMALL`.
        architecture: llama.cpp's.
        keys: metadata by name without the architecture; None: the key is not written.
        tensors: that are no weights, from the config.
    """

    kind: str
    architecture: str
    config: Keys = field(default_factory=dict)
    keys: Keys = field(default_factory=dict)
    tensors: Callable[[Any], Mapping[str, Any]] = lambda config: {}


def llama3_divisors(config: Any) -> dict[str, Any]:
    """`rope_freqs.weight` as the converter makes it."""
    rope = config.rope_parameters
    dim, factors = config.head_dim, []
    for frequency in 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)):
        wavelength = 2 * math.pi / frequency
        old, low = rope["original_max_position_embeddings"], rope["low_freq_factor"]
        if wavelength < old / rope["high_freq_factor"]:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(rope["factor"])
        else:
            smooth = (old / wavelength - low) / (rope["high_freq_factor"] - low)
            factors.append(float(1 / ((1 - smooth) / rope["factor"] + smooth)))
    return {"rope_freqs.weight": np.array(factors, dtype=np.float32)}


def long_and_short(config: Any) -> dict[str, Any]:
    """Phi-3's two lists."""
    return {
        f"rope_factors_{which}.weight": np.array(
            config.rope_parameters[f"{which}_factor"], dtype=np.float32
        )
        for which in ("long", "short")
    }


def make(family: Family, seed: int = 0) -> Any:
    """The model, with random weights in all places: norms and biases too."""
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[family.kind](**{**SMALL, **family.config})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    model.requires_grad_(False).train(False)
    return model


def write(
    path: Path,
    family: Family,
    model: Any,
    *,
    without: str = "",
    extra: Mapping[str, Any] | None = None,
    store: Callable[[str, Any], tuple[Any, Any]] | None = None,
) -> Path:
    """The model as a GGUF file.

    Args:
        without: a tensor that is left out.
        extra: tensors that no place is for.
        store: from a tensor's name and values to its bytes and type; None: 32-bit floats.
    """
    writer = GGUFWriter(path, family.architecture)
    for key, value in _keys(family, model.config).items():
        if value is not None:
            _add(writer, key, value, family)
    for name, values in _tensors(family, model, extra or {}).items():
        if name != without:
            data, kind = (values, None) if store is None else store(name, values)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any, family: Family) -> None:
    is_full = key.startswith(("general.", "tokenizer.", "split.", "quantize.", "mine."))
    full = key if is_full else f"{family.architecture}.{key}"
    match value:
        case bool():
            writer.add_bool(full, value)
        case int():
            writer.add_uint32(full, value)
        case float():
            writer.add_float32(full, value)
        case str() if full != "general.architecture":
            writer.add_string(full, value)
        case str():
            writer.kv_data[0][full].value = value
        case _:
            writer.add_array(full, value)


def _keys(family: Family, config: Any) -> dict[str, Any]:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    keys: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        "attention.head_count": heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "general.file_type": 0,
        "general.name": "tiny",
        "vocab_size": VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_symbols(), "<s>", "<|end|>", "<|eot|>", "12"],
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 3, 1],
        "tokenizer.ggml.merges": ["1 2"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    if rope:
        partial = rope.get("partial_rotary_factor") or 1.0
        keys |= {
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "rope.freq_base": float(rope["rope_theta"]),
            "rope.dimension_count": int(head_dim * partial),
        }
    for ours, theirs in (
        ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        ("norm_eps", "attention.layer_norm_rms_epsilon"),
        ("norm_eps", "attention.layer_norm_epsilon"),
        ("layer_norm_eps", "attention.layer_norm_epsilon"),
        ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
        ("norm_epsilon", "attention.layer_norm_epsilon"),
        ("num_local_experts", "expert_count"),
        ("num_experts", "expert_count"),
        ("num_experts_per_tok", "expert_used_count"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("sliding_window", "attention.sliding_window"),
    ):
        if (value := getattr(config, ours, None)) is not None:
            keys[theirs] = value
    return keys | dict(family.keys)


def _tensors(family: Family, model: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    config = model.config
    architecture = family.architecture
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(numbers[architecture], config.num_hidden_layers)
    made: dict[str, Any] = {}
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        made |= _written(architecture, config, names, name, values.float())
    stacked: dict[str, list[Any]] = {}
    for name in [name for name in made if name.startswith("stack ")]:
        stacked.setdefault(name.split()[1], []).append(made.pop(name))
    made |= {name: torch.stack(rows) for name, rows in stacked.items()}
    arrays = {name: np.ascontiguousarray(values.numpy()) for name, values in made.items()}
    return arrays | dict(family.tensors(config)) | dict(extra)


def _written(architecture: str, config: Any, names: Any, name: str, values: Any) -> dict[str, Any]:
    block = f"blk.{number[0]}." if (number := re.findall(r"\d+", name)) else ""
    if architecture in PAIRED and "self_attn.q_proj" in name:
        values = _pairs(values, config.num_attention_heads)
    if architecture in PAIRED and "self_attn.k_proj" in name:
        values = _pairs(values, config.num_key_value_heads)
    if architecture in OFFSET and name.endswith(("norm.weight", "layernorm.weight")):
        values = values + 1
    if name.endswith("experts.gate_up_proj"):
        gate, up = values.chunk(2, dim=1)
        return {f"{block}ffn_gate_exps.weight": gate, f"{block}ffn_up_exps.weight": up}
    if name.endswith("shared_mlp.input_linear.weight"):
        gate, up = values.chunk(2, dim=0)
        return {f"{block}ffn_gate_shexp.weight": gate, f"{block}ffn_up_shexp.weight": up}
    for ending, theirs in (
        ("experts.down_proj", "ffn_down_exps"),
        ("mlp.gate.weight", "ffn_gate_inp"),
        ("block_sparse_moe.router.weight", "ffn_gate_inp"),
        ("shared_mlp.output_linear.weight", "ffn_down_shexp"),
    ):
        if name.endswith(ending):
            return {f"{block}{theirs}.weight": values}
    for which in "qk":
        if f"self_attn.{which}_layernorm.norms." in name:
            return {f"stack {block}attn_{which}_norm.weight {name}": values}
    if architecture == "gpt2" and values.dim() == 2 and ".h." in name:
        values = values.T
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return {found: values.squeeze(0) if "shared_expert_gate" in name else values}


def _pairs(values: Any, heads: int) -> Any:
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


THETA = {"rope_theta": 10000.0}
SCALED = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
GRANITE = {
    "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}  # fmt: skip
GRANITE_KEYS = {
    "attention.scale": 0.3, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 2.0,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", **THETA, "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [1.0 + i for i in range(8)], "original_max_position_embeddings": 128,
}  # fmt: skip
LONGROPE_KEYS = {
    "rope.scaling.original_context_length": 128,
    "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(128)),
}
GEMMA3_LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", "llama"),
    "llama tied, heads of 24": Family(
        "llama", "llama", {"tie_word_embeddings": True, "head_dim": 24}
    ),
    "llama with biases": Family("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3.2": Family(
        "llama", "llama",
        {"rope_parameters": LLAMA3, "head_dim": 64, "max_position_embeddings": 131072},
        tensors=llama3_divisors,
    ),
    "llama with other divisors": Family(
        "llama", "llama", {"rope_parameters": {**LLAMA3, "high_freq_factor": 3.0,
        "original_max_position_embeddings": 64}}, tensors=llama3_divisors,
    ),
    "llama, linear": Family(
        "llama", "llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}},
        SCALED,
    ),
    "llama, linear by the old key": Family(
        "llama", "llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}},
        {"rope.scale_linear": 4.0},
    ),
    "llama, yarn": Family(
        "llama", "llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **THETA,
        "original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0}},
        {**YARN, "rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0},
    ),
    "mixtral": Family(
        "mixtral", "llama", {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "smollm3": Family(
        "smollm3", "smollm3", {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]}
    ),
    "granite": Family("granite", "granite", GRANITE, GRANITE_KEYS),
    "granite moe": Family(
        "granitemoe", "granitemoe", {**GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2},
        GRANITE_KEYS,
    ),
    "granite moe, shared": Family(
        "granitemoeshared", "granitemoe",
        {**GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2,
         "shared_intermediate_size": 48},
        {**GRANITE_KEYS, "expert_shared_feed_forward_length": 48},
    ),
    "qwen2": Family("qwen2", "qwen2"),
    "qwen2 tied": Family("qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen2, yarn": Family(
        "qwen2", "qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **THETA,
        "original_max_position_embeddings": 128}}, YARN,
    ),
    "qwen2 moe": Family(
        "qwen2_moe", "qwen2moe",
        {**MOE, "shared_expert_intermediate_size": 48, "norm_topk_prob": False},
        {"expert_shared_feed_forward_length": 48},
    ),
    "qwen3": Family("qwen3", "qwen3", {"head_dim": 32}),
    "qwen3 with biases": Family("qwen3", "qwen3", {"head_dim": 16, "attention_bias": True}),
    "qwen3 moe": Family("qwen3_moe", "qwen3moe", {**MOE, "head_dim": 32, "norm_topk_prob": True}),
    "olmo": Family("olmo", "olmo", {"clip_qkv": 0.5}, {
        "attention.clamp_kqv": 0.5, "attention.layer_norm_epsilon": 1e-5}),
    "olmo2": Family("olmo2", "olmo2"),
    "olmoe": Family("olmoe", "olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "phi2": Family("phi", "phi2"),
    "phi3": Family("phi3", "phi3"),
    "phi3 with a window": Family("phi3", "phi3", {"sliding_window": 32}),
    "phi4 mini": Family("phi3", "phi3", {"tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "default", "partial_rotary_factor": 0.75, **THETA}}),
    "phi3.5": Family("phi3", "phi3", {"original_max_position_embeddings": 128,
        "rope_parameters": LONGROPE}, LONGROPE_KEYS, long_and_short),
    "gemma": Family("gemma", "gemma", {"head_dim": 32}),
    "gemma2": Family("gemma2", "gemma2", {**PRE_ATTENTION, "sliding_window": 32,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3 1b": Family("gemma3_text", "gemma3", {**PRE_ATTENTION, "num_hidden_layers": 7,
        "sliding_window": 32}),
    "gemma3 4b": Family("gemma3_text", "gemma3", {**PRE_ATTENTION, "num_hidden_layers": 7,
        "sliding_window": 32, "rope_parameters": GEMMA3_LINEAR},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
         "rope.freq_base_swa": 20000.0}),
    "gpt2": Family("gpt2", "gpt2", {"n_inner": 128}, {"feed_forward_length": 128,
        "attention.head_count_kv": None}),
    "starcoder2": Family("starcoder2", "starcoder2", {"sliding_window": None}),
    "stablelm": Family("stablelm", "stablelm", {"use_qkv_bias": True},
        {"use_parallel_residual": False}),
    "stablelm 12b": Family("stablelm", "stablelm",
        {"use_parallel_residual": True, "qk_layernorm": True}, {"use_parallel_residual": True}),
    "nemotron": Family("nemotron", "nemotron", {"num_key_value_heads": 2}),
    "command-r": Family("cohere", "command-r", {"logit_scale": 0.3},
        {"logit_scale": 0.3, "rope.scaling.type": "none"}),
    "command-r plus": Family("cohere", "command-r", {"logit_scale": 0.3, "use_qk_norm": True},
        {"logit_scale": 0.3, "rope.scaling.type": "none"}),
    "cohere2": Family("cohere2", "cohere2", {"logit_scale": 0.3, "sliding_window": 32,
        "num_hidden_layers": 5}, {"logit_scale": 0.3, "rope.scaling.type": "none"}),
}  # fmt: skip
