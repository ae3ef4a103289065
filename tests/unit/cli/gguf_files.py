"""Tiny GGUF files, written as llama.cpp's converter writes them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import LlamaConfig, LlamaForCausalLM

from services.worker.demo_model import CHAT_TEMPLATE, byte_symbols

HEADS, KV_HEADS, HIDDEN, LAYERS, VOCAB = 4, 2, 64, 2, 260
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def small_llama() -> LlamaForCausalLM:
    """A model with random weights."""
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=128, num_hidden_layers=LAYERS, vocab_size=VOCAB,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=128,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=257,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.train(False)
    return model


def write_gguf(
    path: Path, model: LlamaForCausalLM, *, quantized: bool = False, rule: str = "gpt-2"
) -> Path:
    """`model` with a byte-level tokenizer as a GGUF file."""
    writer = GGUFWriter(path, "llama")
    _write_fields(writer, model.config, rule, quantized=quantized)
    for name, tensor in model.state_dict().items():
        data = _as_llama_cpp_has_it(name, tensor).numpy()
        kind = GGMLQuantizationType.F32
        if quantized and data.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            data = quants.quantize(data, kind)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_fields(writer: Any, config: LlamaConfig, rule: str, *, quantized: bool) -> None:
    writer.add_file_type(7 if quantized else 0)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    symbols = [*byte_symbols(), "<s>", "<|end|>", "<|eot|>", "12"]
    writer.add_token_list(symbols)
    writer.add_token_types([1] * 256 + [3, 3, 3, 1])
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_eot_token_id(258)
    writer.add_chat_template(CHAT_TEMPLATE)


def _as_llama_cpp_has_it(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Queries and keys have the two halves of each head interleaved there."""
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    rows, columns = tensor.shape
    halves = tensor.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns).contiguous()


def _gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def logits(model: Any) -> "np.ndarray[Any, Any]":
    """What a model says to one prompt."""
    with torch.inference_mode():
        values: np.ndarray[Any, Any] = model(torch.arange(2, 42)[None]).logits[0].float().numpy()
    return values
