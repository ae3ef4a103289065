"""What each architecture's metadata says in transformers' config.

Source: llama.cpp's converter and hyperparameters: what a missing key means there, it means here.
"""

from cli.models.gguf.reading import Reading
from cli.models.gguf.rope import no_scaling, read_rope

STARCODER2_WINDOW = 4096


def read_sizes(reading: Reading) -> int:
    """Read what all decoders have; returns the size of a head."""
    keys, config = reading.keys, reading.config
    for key in ("attention.head_count", "embedding_length", "block_count", "context_length"):
        if keys.integer(key) < 1:
            raise keys.refusal(key, "is no size")
    heads = keys.integer("attention.head_count")
    hidden = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    if keys.integer("attention.value_length", hidden // heads) != head_dim:
        raise keys.refusal("attention.value_length", f"keys have {head_dim} dimensions")
    keys.require("attention.causal", True, why="only causal decoders are supported")
    keys.require("pooling_type", 0, why="is of an embedding model, which is not supported as GGUF")
    keys.require("tensor_data_layout", "reference", "Meta AI original pth", why="is not supported")
    config |= {
        "hidden_size": hidden,
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": keys.integer("feed_forward_length", 0),
        "max_position_embeddings": keys.integer("context_length"),
        "tie_word_embeddings": not reading.has("output.weight"),
    }
    return head_dim


def read_window(reading: Reading) -> int | None:
    """The sliding window of all its layers; None: they have none, or it holds any text."""
    window = reading.keys.integer("attention.sliding_window", 0)
    return window if 0 < window < reading.config["max_position_embeddings"] else None


def refuse_window(reading: Reading) -> None:
    """Of an architecture whose layers see all tokens before theirs."""
    if read_window(reading) is not None:
        why = "no layer of this architecture has a window"
        raise reading.keys.refusal("attention.sliding_window", why)


def read_rms(reading: Reading) -> None:
    """Read the epsilon of an architecture whose norms are by root mean square."""
    reading.config["rms_norm_eps"] = reading.keys.number("attention.layer_norm_rms_epsilon")
    reading.keys.ignore("attention.layer_norm_epsilon")  # of norms that it has not


def refuse_experts(reading: Reading) -> None:
    """Of an architecture without experts; zeros are written too."""
    for key in ("expert_count", "expert_used_count", "expert_group_count"):
        reading.keys.require(key, 0, why="is supported for other architectures only")


def read_experts(reading: Reading, count: str, *, is_normed: bool) -> None:
    """Read the numbers of a mixture of experts.

    Args:
        count: what the config calls the number of experts.
        is_normed: the weights of the chosen ones add up to 1, if the file does not say.
    """
    keys, config = reading.keys, reading.config
    config[count] = keys.integer("expert_count")
    config["num_experts_per_tok"] = keys.integer("expert_used_count")
    keys.require("expert_gating_func", 1, why="only softmax (1) is supported")
    keys.require("expert_weights_scale", 0, 1, why="weights of experts are not scaled")
    for key in ("expert_group_count", "expert_group_used_count", "expert_shared_count"):
        keys.require(key, 0, why="is not supported for this architecture")
    keys.require("leading_dense_block_count", 0, why="is not supported for this architecture")
    if "norm_topk_prob" in config and not keys.has("expert_weights_norm"):
        reading.remarks.append(
            f"the file does not say norm_topk_prob: {is_normed} is taken, as llama.cpp does and as "
            "published models of this architecture have it"
        )
    if keys.flag("expert_weights_norm", default=is_normed) != is_normed:
        if "norm_topk_prob" not in config:
            raise keys.refusal("expert_weights_norm", "is not supported for this architecture")
        config["norm_topk_prob"] = not is_normed


def _biases(reading: Reading) -> None:
    reading.config["attention_bias"] = reading.in_layers("attn_q.bias")
    reading.config["mlp_bias"] = reading.in_layers("ffn_up.bias")


def _llama_like(reading: Reading) -> None:
    head_dim = read_sizes(reading)
    read_rms(reading)
    refuse_window(reading)
    _biases(reading)
    reading.config["rope_parameters"] = read_rope(reading, head_dim, has_divisors=True)


def read_llama(reading: Reading) -> None:
    """Config of Llama, and Mixtral, which has experts."""
    _llama_like(reading)
    if not reading.keys.integer("expert_count", 0):
        return refuse_experts(reading)
    reading.config["model_type"] = "mixtral"
    read_experts(reading, "num_local_experts", is_normed=True)
    own = reading.keys.integer("expert_feed_forward_length", reading.config["intermediate_size"])
    reading.config["intermediate_size"] = own
    return None


def read_smollm3(reading: Reading) -> None:
    """Config of SmolLM3, whose every fourth layer knows no positions."""
    _llama_like(reading)
    refuse_experts(reading)
    reading.config["no_rope_layer_interval"] = 4
    reading.config["use_sliding_window"] = False


def read_granite(reading: Reading) -> None:
    """Config of Granite, with scales of its own."""
    _llama_like(reading)
    keys, config = reading.keys, reading.config
    config["attention_multiplier"] = keys.number("attention.scale")
    config["embedding_multiplier"] = keys.number("embedding_scale")
    config["residual_multiplier"] = keys.number("residual_scale")
    config["logits_scaling"] = keys.number("logit_scale")
    why = "layers without positions are not supported"  # llama.cpp has it switch rope off
    keys.require("rope.scaling.finetuned", True, why=why)
    if not keys.integer("expert_count", 0):
        refuse_experts(reading)


def read_granite_moe(reading: Reading) -> None:
    """Config of Granite with experts, and perhaps a shared one."""
    read_granite(reading)
    read_experts(reading, "num_local_experts", is_normed=True)
    shared = reading.keys.integer("expert_shared_feed_forward_length", 0)
    reading.keys.require(
        "expert_feed_forward_length", reading.config["intermediate_size"], why="is another width"
    )
    if shared:
        reading.config["model_type"] = "granitemoeshared"
        reading.config["shared_intermediate_size"] = shared


def read_qwen2(reading: Reading) -> None:
    """Config of Qwen2."""
    head_dim = read_sizes(reading)
    read_rms(reading)
    refuse_window(reading)
    refuse_experts(reading)
    reading.config["rope_parameters"] = read_rope(reading, head_dim)


def read_qwen3(reading: Reading) -> None:
    """Config of Qwen3."""
    read_qwen2(reading)
    reading.config["attention_bias"] = reading.in_layers("attn_q.bias")


def _qwen_moe(reading: Reading, *, is_normed: bool) -> None:
    head_dim = read_sizes(reading)
    read_rms(reading)
    refuse_window(reading)
    reading.config |= {
        "rope_parameters": read_rope(reading, head_dim),
        "norm_topk_prob": is_normed,
        "moe_intermediate_size": reading.keys.integer(
            "expert_feed_forward_length", reading.shape("blk.0.ffn_gate_exps.weight")[1]
        ),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    read_experts(reading, "num_experts", is_normed=is_normed)


def read_qwen2moe(reading: Reading) -> None:
    """Config of Qwen2 with experts and a shared one."""
    _qwen_moe(reading, is_normed=False)
    reading.config["shared_expert_intermediate_size"] = reading.keys.integer(
        "expert_shared_feed_forward_length", reading.shape("blk.0.ffn_gate_shexp.weight")[0]
    )
    reading.config["qkv_bias"] = reading.in_layers("attn_q.bias")


def read_qwen3moe(reading: Reading) -> None:
    """Config of Qwen3 with experts."""
    _qwen_moe(reading, is_normed=True)
    reading.config["attention_bias"] = reading.in_layers("attn_q.bias")


def read_olmoe(reading: Reading) -> None:
    """Config of OLMoE."""
    head_dim = read_sizes(reading)
    read_rms(reading)
    refuse_window(reading)
    reading.config |= {
        "rope_parameters": read_rope(reading, head_dim),
        "norm_topk_prob": False,
        "clip_qkv": _clamp(reading),
    }
    read_experts(reading, "num_experts", is_normed=False)
    reading.keys.require(
        "expert_feed_forward_length", reading.config["intermediate_size"], why="is another width"
    )


def _clamp(reading: Reading) -> float | None:
    return reading.keys.number("attention.clamp_kqv", 0.0) or None


def read_olmo(reading: Reading) -> None:
    """Config of OLMo, whose norms have no weights."""
    head_dim = read_sizes(reading)
    refuse_window(reading)
    refuse_experts(reading)
    reading.keys.require("attention.layer_norm_epsilon", 1e-5, why="is 1e-05 in this architecture")
    reading.config["clip_qkv"] = _clamp(reading)
    reading.config["attention_bias"] = reading.in_layers("attn_q.bias")
    reading.config["rope_parameters"] = read_rope(reading, head_dim)


def read_olmo2(reading: Reading) -> None:
    """Config of OLMo 2."""
    read_qwen3(reading)


def read_phi3(reading: Reading) -> None:
    """Config of Phi-3 to Phi-4."""
    head_dim = read_sizes(reading)
    read_rms(reading)
    refuse_experts(reading)
    rope = read_rope(reading, head_dim, can_be_partial=True, has_divisors=True)
    if "original_max_position_embeddings" in rope:
        reading.config["original_max_position_embeddings"] = rope[
            "original_max_position_embeddings"
        ]
    reading.config["sliding_window"] = read_window(reading)
    reading.config["rope_parameters"] = rope


def read_gemma(reading: Reading) -> None:
    """Config of Gemma."""
    head_dim = read_sizes(reading)
    read_rms(reading)
    refuse_window(reading)
    refuse_experts(reading)
    reading.config["rope_parameters"] = read_rope(reading, head_dim)


def _gemma_scale(reading: Reading, head_dim: int, layers_27b: int) -> int:
    """What the scale of attention is the inverse root of: no published file has it as a key."""
    keys, config = reading.keys, reading.config
    if keys.has("attention.scale"):
        exact = keys.number("attention.scale") ** -2
        if abs(exact - round(exact)) > 1e-4 * exact:
            raise keys.refusal("attention.scale", "is not the inverse root of a whole number")
        return round(exact)
    if config["num_hidden_layers"] == layers_27b:
        return int(config["hidden_size"] // config["num_attention_heads"])
    if head_dim != 256:  # that of all other sizes, whose scale is by it
        raise keys.refusal(
            "attention.scale",
            f"is missing, and heads of {head_dim} dimensions in {config['num_hidden_layers']} "
            "layers are of no known size of this architecture, by which it would be known",
        )
    return head_dim


def _layer_types(reading: Reading, default: int) -> list[str]:
    """Which layers have a window: all but every n-th, or as a list says."""
    num_layers = reading.config["num_hidden_layers"]
    pattern = reading.keys.value("attention.sliding_window_pattern", default)
    if isinstance(pattern, list) and len(pattern) == num_layers:
        sliding = [bool(each) for each in pattern]
    elif type(pattern) is int and pattern > 0:
        sliding = [index % pattern < pattern - 1 for index in range(num_layers)]
    else:
        raise reading.keys.refusal("attention.sliding_window_pattern", "is no pattern of layers")
    return ["sliding_attention" if each else "full_attention" for each in sliding]


def read_gemma2(reading: Reading) -> None:
    """Config of Gemma 2."""
    head_dim = read_sizes(reading)
    read_rms(reading)
    refuse_experts(reading)
    keys = reading.keys
    reading.config |= {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _gemma_scale(reading, head_dim, 46),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0) or None,
        "sliding_window": keys.integer("attention.sliding_window", 4096),
        "layer_types": _layer_types(reading, 2),
        "rope_parameters": read_rope(reading, head_dim),
    }


def read_gemma3(reading: Reading) -> None:
    """Config of Gemma 3, of which scaling is for the layers that see all tokens."""
    head_dim = read_sizes(reading)
    read_rms(reading)
    refuse_experts(reading)
    keys = reading.keys
    keys.ignore_under("mm.", "vision.")  # of the part for images, whose tensors are another file's
    local = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base_swa", 10000.0)}
    reading.config |= {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _gemma_scale(reading, head_dim, 62),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 0.0) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0.0) or None,
        "sliding_window": keys.integer("attention.sliding_window"),
        "layer_types": _layer_types(reading, 6),
        # Scaling is of the layers that see all tokens.
        "rope_parameters": {
            "full_attention": read_rope(reading, head_dim),
            "sliding_attention": local,
        },
    }


def read_gpt2(reading: Reading) -> None:
    """Config of GPT-2, with learned positions."""
    head_dim = read_sizes(reading)
    keys, config = reading.keys, reading.config
    refuse_window(reading)
    refuse_experts(reading)
    if head_dim * config["num_attention_heads"] != config["hidden_size"]:
        raise keys.refusal("attention.key_length", "is not the width by the number of heads")
    if config["num_key_value_heads"] != config["num_attention_heads"]:
        raise keys.refusal("attention.head_count_kv", "GPT-2 has as many as heads")
    for name in ("head_dim", "num_key_value_heads"):
        del config[name]
    config["n_inner"] = config.pop("intermediate_size")
    _layer_norm(reading, "layer_norm_epsilon")
    no_scaling(reading)
    keys.ignore("rope.dimension_count", "rope.freq_base")  # it has learned positions


def _layer_norm(reading: Reading, name: str) -> None:
    reading.config[name] = reading.keys.number("attention.layer_norm_epsilon")
    reading.keys.ignore("attention.layer_norm_rms_epsilon")  # of norms that it has not


def read_starcoder2(reading: Reading) -> None:
    """Config of StarCoder2."""
    head_dim = read_sizes(reading)
    window = reading.keys.has("attention.sliding_window")
    if not window and reading.config["max_position_embeddings"] > STARCODER2_WINDOW:
        reading.remarks.append(
            "the file does not say whether layers have a window, as published models have "
            f"({STARCODER2_WINDOW} tokens): none is taken, as llama.cpp does"
        )
    _layer_norm(reading, "norm_epsilon")
    refuse_experts(reading)
    reading.config |= {
        "use_bias": reading.in_layers("attn_q.bias"),
        "sliding_window": read_window(reading),
        "hidden_act": "gelu_pytorch_tanh",
        "rope_parameters": read_rope(reading, head_dim),
    }


def read_stablelm(reading: Reading) -> None:
    """Config of StableLM, with layers one after the other or in parallel."""
    head_dim = read_sizes(reading)
    _layer_norm(reading, "layer_norm_eps")
    refuse_window(reading)
    refuse_experts(reading)
    is_parallel = not reading.in_layers("ffn_norm.weight")
    reading.keys.require("use_parallel_residual", is_parallel, why="layers have other norms")
    reading.config |= {
        "use_qkv_bias": reading.in_layers("attn_q.bias"),
        "use_parallel_residual": is_parallel,
        "qk_layernorm": reading.in_layers("attn_q_norm.weight"),
        "rope_parameters": read_rope(reading, head_dim, can_be_partial=True),
    }
    reading.config["rope_parameters"].setdefault("partial_rotary_factor", 1.0)


def read_nemotron(reading: Reading) -> None:
    """Config of Nemotron."""
    head_dim = read_sizes(reading)
    _layer_norm(reading, "norm_eps")
    refuse_window(reading)
    refuse_experts(reading)
    _biases(reading)
    rope = read_rope(reading, head_dim, can_be_partial=True)
    reading.config["rope_parameters"] = {"partial_rotary_factor": 1.0, **rope}


def read_phi2(reading: Reading) -> None:
    """Config of Phi-1 and Phi-2."""
    head_dim = read_sizes(reading)
    _layer_norm(reading, "layer_norm_eps")
    refuse_window(reading)
    refuse_experts(reading)
    rope = read_rope(reading, head_dim, can_be_partial=True)
    reading.config["rope_parameters"] = {"partial_rotary_factor": 1.0, **rope}


def _cohere(reading: Reading) -> None:
    head_dim = read_sizes(reading)
    _layer_norm(reading, "layer_norm_eps")
    refuse_experts(reading)
    reading.config["logit_scale"] = reading.keys.number("logit_scale")
    reading.config["attention_bias"] = reading.in_layers("attn_q.bias")
    reading.config["rope_parameters"] = read_rope(reading, head_dim)


def read_command_r(reading: Reading) -> None:
    """Config of Command R."""
    _cohere(reading)
    refuse_window(reading)
    reading.config["use_qk_norm"] = reading.in_layers("attn_q_norm.weight")


def read_cohere2(reading: Reading) -> None:
    """Config of Command R7B and A."""
    _cohere(reading)
    reading.config["sliding_window"] = reading.keys.integer("attention.sliding_window")
    reading.config["layer_types"] = _layer_types(reading, 4)
