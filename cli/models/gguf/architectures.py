"""What each architecture of GGUF files is in transformers: config and names of tensors.

Sources: llama.cpp's converter and hyperparameters (what a missing key means there is what it means
here), and transformers' configurations. An architecture is here if logits of files written from
transformers' models, with each option that their configs have, were compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cli.models.gguf import readers
from cli.models.gguf.reading import Reading

# A module of a layer by transformers' name, and its tensor's name in the file; with ops behind "|":
# see `places.OPERATIONS`.
Names = Mapping[str, str]

OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
# Rows of pairs: llama.cpp turns neighbours, transformers the two halves of a head.
PAIRED = {"self_attn.q_proj": "attn_q|halves", "self_attn.k_proj": "attn_k|halves"}
HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
AFTER_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
EXPERTS = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_up_proj": "ffn_gate_exps + ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
DENSE = {**NORMS, **ATTENTION, **MLP}
OFFSET_NORMS = {  # stored plus one
    "input_layernorm": "attn_norm|less one",
    "post_attention_layernorm": "ffn_norm|less one",
}
GEMMA_NORMS = {
    "input_layernorm": "attn_norm|less one",
    "post_attention_layernorm": "post_attention_norm|less one",
    "pre_feedforward_layernorm": "ffn_norm|less one",
    "post_feedforward_layernorm": "post_ffw_norm|less one",
}
GEMMA_OUTER = {**OUTER, "model.norm": "output_norm|less one"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Attributes:
    model_type: transformers' name.
    layer: of the modules in a layer.
    read: adds to the reading's config what is not common to all.
    outer: of the modules outside of layers.
    prefix: of a layer's modules.
    """

    model_type: str
    layer: Names
    read: Callable[[Reading], None]
    outer: Names = field(default_factory=lambda: OUTER)
    prefix: str = "model.layers."


_LLAMA = {**DENSE, **PAIRED}
ARCHITECTURES = {
    "llama": Architecture("llama", {**_LLAMA, **EXPERTS}, readers.read_llama),
    "smollm3": Architecture("smollm3", _LLAMA, readers.read_smollm3),
    "granite": Architecture("granite", _LLAMA, readers.read_granite),
    "granitemoe": Architecture(
        "granitemoe",
        {
            **NORMS,
            **ATTENTION,
            **PAIRED,
            "block_sparse_moe.router": "ffn_gate_inp",
            "block_sparse_moe.experts.gate_up_proj": "ffn_gate_exps + ffn_up_exps",
            "block_sparse_moe.experts.down_proj": "ffn_down_exps",
            "shared_mlp.input_linear": "ffn_gate_shexp + ffn_up_shexp",
            "shared_mlp.output_linear": "ffn_down_shexp",
        },
        readers.read_granite_moe,
    ),
    "qwen2": Architecture("qwen2", DENSE, readers.read_qwen2),
    "qwen3": Architecture("qwen3", {**DENSE, **HEAD_NORMS}, readers.read_qwen3),
    "qwen2moe": Architecture(
        "qwen2_moe",
        {
            **NORMS,
            **ATTENTION,
            **EXPERTS,
            "mlp.shared_expert_gate": "ffn_gate_inp_shexp|one row",
            "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
            "mlp.shared_expert.up_proj": "ffn_up_shexp",
            "mlp.shared_expert.down_proj": "ffn_down_shexp",
        },
        readers.read_qwen2moe,
    ),
    "qwen3moe": Architecture(
        "qwen3_moe", {**NORMS, **ATTENTION, **HEAD_NORMS, **EXPERTS}, readers.read_qwen3moe
    ),
    "olmo": Architecture("olmo", {**ATTENTION, **PAIRED, **MLP}, readers.read_olmo),
    "olmo2": Architecture(
        "olmo2", {**AFTER_NORMS, **ATTENTION, **HEAD_NORMS, **MLP}, readers.read_olmo2
    ),
    "olmoe": Architecture(
        "olmoe", {**NORMS, **ATTENTION, **HEAD_NORMS, **EXPERTS}, readers.read_olmoe
    ),
    "phi2": Architecture(
        "phi",
        {
            "input_layernorm": "attn_norm",
            **ATTENTION,
            "self_attn.dense": "attn_output",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
        },
        readers.read_phi2,
        {**OUTER, "model.final_layernorm": "output_norm"},
    ),
    "phi3": Architecture(
        "phi3",
        {
            **NORMS,
            "self_attn.qkv_proj": "attn_qkv",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        },
        readers.read_phi3,
    ),
    "gemma": Architecture("gemma", {**DENSE, **OFFSET_NORMS}, readers.read_gemma, GEMMA_OUTER),
    "gemma2": Architecture("gemma2", {**DENSE, **GEMMA_NORMS}, readers.read_gemma2, GEMMA_OUTER),
    "gemma3": Architecture(
        "gemma3_text",
        {
            **DENSE,
            **GEMMA_NORMS,
            "self_attn.q_norm": "attn_q_norm|less one",
            "self_attn.k_norm": "attn_k_norm|less one",
        },
        readers.read_gemma3,
        GEMMA_OUTER,
    ),
    "gpt2": Architecture(
        "gpt2",
        {
            "ln_1": "attn_norm",
            "ln_2": "ffn_norm",
            "attn.c_attn": "attn_qkv|transposed",
            "attn.c_proj": "attn_output|transposed",
            "mlp.c_fc": "ffn_up|transposed",
            "mlp.c_proj": "ffn_down|transposed",
        },
        readers.read_gpt2,
        {
            "transformer.wte": "token_embd",
            "transformer.wpe": "position_embd",
            "transformer.ln_f": "output_norm",
            "lm_head": "output",
        },
        "transformer.h.",
    ),
    "starcoder2": Architecture(
        "starcoder2",
        {**NORMS, **ATTENTION, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
        readers.read_starcoder2,
    ),
    "stablelm": Architecture(
        "stablelm",
        {
            **DENSE,
            "self_attn.q_layernorm.norms": "attn_q_norm|row",
            "self_attn.k_layernorm.norms": "attn_k_norm|row",
        },
        readers.read_stablelm,
    ),
    "nemotron": Architecture(
        "nemotron", {**DENSE, **OFFSET_NORMS}, readers.read_nemotron, GEMMA_OUTER
    ),
    "command-r": Architecture("cohere", {**DENSE, **HEAD_NORMS}, readers.read_command_r),
    "cohere2": Architecture("cohere2", DENSE, readers.read_cohere2),
}
