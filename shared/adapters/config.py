"""What ``adapter_config.json`` says, as far as it decides what an adapter computes.

Refused is what would be served wrong: kinds of LoRA that compute something else, and those whose
training changed the base's weights.

Source: PEFT 0.21, `LoraConfig`.
"""

import json
import math
import reprlib
from dataclasses import dataclass
from typing import Any

from shared.errors import InvalidRequest

CONFIG_FILE = "adapter_config.json"
CONFIG_BYTES_MAX = 1 << 20
PATTERNS_MAX = 8192
PATTERN_CHARS_MAX = 512
UNKNOWN_MAX = 16

_DEFAULT_RANK = 8  # PEFT's, also of alpha
_KNOWN = frozenset([  # looked at by name, or say nothing of what is computed
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path",
    "revision", "inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha",
    "lora_dropout", "fan_in_fan_out", "bias", "use_rslora", "init_lora_weights",
    "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "megatron_core",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size",
    "runtime_config", "ensure_weight_tying",
])  # fmt: skip
_REFUSED = {
    "use_dora": "DoRA",
    "lora_bias": "a bias of B",
    "modules_to_save": "whole modules beside LoRA",
    "layer_replication": "another stack of layers",
    "target_parameters": "LoRA on parameters, such as experts",
    "use_qalora": "QALoRA",
}  # where they are not empty
_REFUSED_EVEN_EMPTY = {
    "trainable_token_indices": "trained embeddings of tokens",
    "alora_invocation_tokens": "aLoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow",
    "monteclora_config": "MonteCLoRA",
    "velora_config": "VeLoRA",
    "kasa_config": "KaSA",
}
_INIT_KEEPS_BASE = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
_INIT_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


class AdapterInvalid(InvalidRequest):
    """An adapter that cannot be served. `param` is the field, the tensor or the file."""

    code = "adapter_invalid"

    def __init__(self, param: str, why: str) -> None:
        name = shown_name(param)
        super().__init__(f"{name}: {why}", name)


class AdapterTooLarge(AdapterInvalid):
    """More bytes than an adapter may have here."""

    code = "adapter_too_large"
    http_status = 413


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Attributes:
    rank: of modules that no `rank_pattern` matches; so is `alpha`.
    rank_pattern: regular expression -> rank; the first that matches counts.
    layers: that may have tensors; None: all.
    targets: modules that have tensors: ends of their names, or one regular expression; None: not
        said.
    excluded: of those, ones that have none.
    base_name: of the model that it was trained on, as its owner called it.
    unknown: fields that are in no version of PEFT that we know, and say something.
    """

    rank: int
    alpha: float
    is_rslora: bool
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    layers: frozenset[int] | None
    targets: frozenset[str] | str | None
    excluded: frozenset[str] | str | None
    base_name: str
    unknown: tuple[str, ...]


def scale_of(alpha: float, rank: int, is_rslora: bool) -> float:
    """What xAB is multiplied by.

    >>> scale_of(16, 8, False), scale_of(16, 4, True)
    (2.0, 8.0)
    """
    return alpha / math.sqrt(rank) if is_rslora else alpha / rank


def parse_config(raw: bytes, rank_max: int) -> AdapterConfig:
    """The whole of an ``adapter_config.json``.

    Raises:
        AdapterInvalid: it is no such file, or asks for what is not supported.
    """
    fields = parse_object(raw, CONFIG_FILE)
    if fields.get("peft_type") != "LORA":
        raise _wrong("peft_type", fields.get("peft_type"), "'LORA'")
    for name, what in _REFUSED.items():
        if fields.get(name):
            raise AdapterInvalid(name, f"{what} is not supported: {shown(fields[name])}")
    for name, what in _REFUSED_EVEN_EMPTY.items():
        if fields.get(name) not in (None, False):
            raise AdapterInvalid(name, f"{what} is not supported: {shown(fields[name])}")
    if fields.get("bias", "none") not in ("none", None):
        raise _wrong("bias", fields["bias"], "'none'")
    _check_init(fields.get("init_lora_weights"))
    ranks, alphas = _patterns(fields, "rank_pattern"), _patterns(fields, "alpha_pattern")
    return AdapterConfig(
        rank=_rank("r", fields.get("r", _DEFAULT_RANK), rank_max),
        alpha=_alpha("lora_alpha", fields.get("lora_alpha", _DEFAULT_RANK)),
        is_rslora=_flag(fields, "use_rslora"),
        rank_pattern={key: _rank("rank_pattern", ranks[key], rank_max) for key in ranks},
        alpha_pattern={key: _alpha("alpha_pattern", alphas[key]) for key in alphas},
        layers=_layers(fields.get("layers_to_transform")),
        targets=_modules(fields, "target_modules"),
        excluded=_modules(fields, "exclude_modules"),
        base_name=_text(fields, "base_model_name_or_path"),
        unknown=tuple(
            f"{shown_name(name)}: unknown, left aside: {shown(value)}"
            for name, value in fields.items()
            if value and name not in _KNOWN
        )[:UNKNOWN_MAX],
    )


def parse_object(raw: bytes, where: str) -> dict[str, Any]:
    """A JSON object; nothing in it is named twice.

    Raises:
        AdapterInvalid: with `where` as `param`.
    """
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_no_doubles, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise AdapterInvalid(where, f"is no JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise AdapterInvalid(where, f"is no JSON object: {shown(value)}")
    return value


def shown(value: object) -> str:
    """A stranger's value for a message: short and printable."""
    return _SHORT.repr(value)


def shown_name(name: str) -> str:
    """A stranger's name for a message: short and printable."""
    short = name if len(name) <= 200 else name[:200] + "..."
    return short if short and short.isprintable() else ascii(short)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{shown(name)} is there twice")
        found[name] = value
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _wrong(field: str, found: object, expected: str) -> AdapterInvalid:
    return AdapterInvalid(field, f"{shown(found)} is not {expected}")


def _check_init(init: object) -> None:
    if isinstance(init, str) and init.startswith(_INIT_CHANGES_BASE):
        raise AdapterInvalid(
            "init_lora_weights",
            f"{shown(init)} was trained on a changed base: save it converted"
            " (`path_initial_model_for_weight_conversion`)",
        )
    if not (isinstance(init, bool | str | None) and init in _INIT_KEEPS_BASE):
        expected = "one of " + ", ".join(map(repr, _INIT_KEEPS_BASE[1:]))
        raise _wrong("init_lora_weights", init, expected)


def _rank(field: str, value: object, rank_max: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= rank_max:
        raise _wrong(field, value, f"1 to {rank_max}")
    return value


def _alpha(field: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            alpha = float(value)
        except OverflowError:
            alpha = math.inf
        if abs(alpha) < 1e30:  # any rank's scale is finite in float32
            return alpha
    raise _wrong(field, value, "a number")


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise _wrong(name, value, "true or false")
    return bool(value)


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise _wrong(name, value, "a text")
    return value or ""


def _patterns(fields: dict[str, Any], name: str) -> dict[str, object]:
    found = fields.get(name) or {}
    if not isinstance(found, dict):
        raise _wrong(name, found, "an object")
    if len(found) > PATTERNS_MAX:
        raise AdapterInvalid(name, f"{len(found)} patterns, at most {PATTERNS_MAX} are taken")
    for pattern in found:
        if len(pattern) > PATTERN_CHARS_MAX:
            raise _wrong(name, pattern, f"up to {PATTERN_CHARS_MAX} characters")
    return found


def _layers(value: object) -> frozenset[int] | None:
    if value is None or value == []:  # as in PEFT, an empty list is none
        return None
    layers = value if isinstance(value, list) else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in layers):
        raise _wrong("layers_to_transform", value, "a number, or a list of numbers")
    return frozenset(layers)


def _modules(fields: dict[str, Any], name: str) -> frozenset[str] | str | None:
    value = fields.get(name)
    if value is None or value == []:
        return None
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) and len(each) <= PATTERN_CHARS_MAX for each in texts):
        raise _wrong(name, value, f"a text of up to {PATTERN_CHARS_MAX} characters, or a list")
    return frozenset(map(str, texts)) if isinstance(value, list) else str(value)
