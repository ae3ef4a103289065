"""Why a model cannot be served, in words of its own parts."""

import inspect
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedConfig

_PAGED_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


def named(config: PreTrainedConfig) -> str:
    """The family, and the class that transformers has for it."""
    kind = model_class(config)
    return f"{config.model_type}" + (f" ({kind.__name__})" if kind is not None else "")


def model_class(config: PreTrainedConfig) -> type[Any] | None:
    """transformers' class for generating text with such a model; None: it has none."""
    kind: Any = AutoModelForCausalLM._model_mapping.get(type(config), None)
    found: type[Any] | None = kind[0] if isinstance(kind, tuple | list) else kind
    return found


def explain(config: PreTrainedConfig) -> str | None:
    """What about such a model this engine does not compute; None: nothing that is known here."""
    text = config.get_text_config()
    kind = model_class(config)
    if getattr(text, "alibi", False) or text.model_type in {"bloom", "mpt"}:
        return "it uses alibi, a bias on attention scores that paged attention does not compute"
    if kind is not None and getattr(kind, "_is_stateful", False):
        return "it keeps a recurrent state for each sequence, which is not kept in pages of KV"
    if foreign := sorted(_layer_kinds(text) - _PAGED_KINDS):
        return f"it has layers of kind {', '.join(foreign)}, whose state is not kept in pages of KV"
    if getattr(text, "kv_lora_rank", None):
        return "it uses multi-head latent attention, whose KV has other sizes than pages hold"
    if getattr(text, "use_bidirectional_attention", False) or not getattr(text, "is_causal", True):
        return "its attention looks ahead, and a token that was computed must not change"
    if getattr(text, "is_decoder", True) is False and _can_be_encoder(kind):
        return "its config says that it is an encoder (is_decoder is false)"
    if kind is not None and _INTERFACE not in _source(kind):
        return "it computes attention in code of its own, which paged attention cannot replace"
    if kind is not None and "position_ids" not in inspect.signature(kind.forward).parameters:
        return "it takes no positions: it counts them from the first token of each pass"
    return None


def _layer_kinds(config: PreTrainedConfig) -> set[str]:
    found: set[str] = set()
    for name in ("layer_types", "layers_block_type"):
        value = getattr(config, name, None)
        if isinstance(value, list | tuple):
            found.update(each for each in value if isinstance(each, str))
    return found


def _can_be_encoder(kind: type[Any] | None) -> bool:
    return kind is not None and "is_decoder" in _source(kind)


def _source(kind: type[Any]) -> str:
    module = inspect.getmodule(kind)
    return "" if module is None else inspect.getsource(module)
