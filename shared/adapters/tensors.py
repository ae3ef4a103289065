"""The tensors of ``adapter_model.safetensors``: their header, and which modules they belong to.

Nothing of a tensor's own bytes is read here, and nothing is made larger than the header.

Source: the safetensors format; PEFT 0.21, `get_peft_model_state_dict`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

from shared.adapters.config import AdapterConfig, AdapterInvalid, parse_object, scale_of, shown
from shared.adapters.patterns import first_matches, targeted
from shared.wire.messages.adapters import LoraCard, LoraTarget

WEIGHTS_FILE = "adapter_model.safetensors"
ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
PREFIX = "base_model.model."
ALL_LINEAR = "all-linear"

_LENGTH_BYTES = 8
_A, _B, _BASE = ".lora_A.weight", ".lora_B.weight", ".base_layer.weight"
_REFUSED_PARTS = {
    ".lora_embedding_": "LoRA on an embedding is not supported",
    ".lora_magnitude_vector": "DoRA is not supported",
    ".lora_A.bias": "a bias is not supported",
    ".lora_B.bias": "a bias is not supported",
    ".modules_to_save.": "whole modules beside LoRA are not supported",
    ".token_adapter.": "trained embeddings of tokens are not supported",
    ".lora_diag": "KaSA is not supported",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Attributes:
    dtype: a key of `ELEMENT_BYTES`.
    begin: of its bytes, from the beginning of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ModuleTensors:
    """What an adapter adds to one linear layer.

    Attributes:
        name: of the module in the model.
        number: of its target, as `LoraCard` counts.
        layer: -1: in none.
        a: ``[rank, num_in]``.
        b: ``[num_out, rank]``.
        scale: of xAB.
    """

    name: str
    target: LoraTarget
    number: int
    layer: int
    rank: int
    scale: float
    a: TensorEntry
    b: TensorEntry


@dataclass(frozen=True, slots=True)
class AdapterTensors:
    """Attributes:
    modules: by name.
    base: copies of the base's own weights, by the name of their target.
    """

    modules: tuple[ModuleTensors, ...]
    base: dict[str, TensorEntry]


def read_header(
    file: BinaryIO, file_bytes: int, header_bytes_max: int, num_tensors_max: int
) -> list[TensorEntry]:
    """What tensors a safetensors file has, by name. Reads its header only.

    Raises:
        AdapterInvalid: the header is damaged or too large, or is not about just these bytes.
    """
    raw = file.read(_LENGTH_BYTES)
    size = int.from_bytes(raw, "little")
    if len(raw) < _LENGTH_BYTES:
        raise _damaged(f"{file_bytes} bytes are no safetensors file")
    if size > header_bytes_max:
        raise _damaged(f"a header of {size} bytes, at most {header_bytes_max} are taken")
    begin = _LENGTH_BYTES + size
    if begin > file_bytes:
        raise _damaged(f"truncated: {file_bytes} bytes, its header alone ends at {begin}")
    fields = parse_object(file.read(size), WEIGHTS_FILE)
    fields.pop("__metadata__", None)
    if not fields:
        raise _damaged("has no tensors")
    if len(fields) > num_tensors_max:
        raise _damaged(f"{len(fields)} tensors, at most {num_tensors_max} are taken")
    entries = [_entry(name, fields[name], begin) for name in sorted(fields)]
    _check_places(entries, begin, file_bytes)
    return entries


def match_modules(
    entries: Iterable[TensorEntry], card: LoraCard, config: AdapterConfig
) -> AdapterTensors:
    """Which modules of the model the tensors belong to.

    Raises:
        AdapterInvalid: a tensor belongs to none, or has another shape than its module, the
            config, or its counterpart asks for; or one is missing that the config targets.
    """
    places = _places(card)
    found: dict[str, dict[str, TensorEntry]] = {}
    base: dict[str, TensorEntry] = {}
    for each in entries:
        module, kind = _split(each)
        if module not in places:
            raise AdapterInvalid(each.name, "is for no linear layer of this model")
        if kind == _BASE:
            _check_base(each, places[module])
            base[module] = each
        else:
            found.setdefault(module, {})[kind] = each
    names = sorted(found)
    if not names:
        raise _damaged("has no LoRA tensors")
    _check_targets(config, places, found)
    ranks, scales = _terms(config, names)
    modules = [
        _module(name, places[name], found[name], ranks[name], scales[name], config)
        for name in names
    ]
    return AdapterTensors(tuple(modules), base)


def _check_targets(
    config: AdapterConfig, places: Mapping[str, "_Place"], found: Mapping[str, object]
) -> None:
    """See that each module that the config targets has its tensors: PEFT saves them all."""
    missing = [
        name
        for name, place in places.items()
        if name not in found and (config.layers is None or place.layer in config.layers)
    ]
    if config.targets == ALL_LINEAR:  # all but the head
        wanted = {name for name in missing if places[name].layer >= 0}
    else:
        wanted = targeted("target_modules", config.targets, missing)
    wanted -= targeted("exclude_modules", config.excluded, sorted(wanted))
    if wanted:
        raise AdapterInvalid(
            f"{PREFIX}{min(wanted)}{_A}", "is missing: target_modules of the config names it"
        )


@dataclass(frozen=True, slots=True)
class _Place:
    target: LoraTarget
    number: int
    layer: int


def _places(card: LoraCard) -> dict[str, _Place]:
    """Every module that may be a target, by name."""
    num_inner = len(card.targets)
    inner = {
        f"{card.layers_path}.{layer}.{each.name}": _Place(each, number, layer)
        for layer in range(card.num_layers)
        for number, each in enumerate(card.targets)
    }
    outer = {each.name: _Place(each, num_inner + at, -1) for at, each in enumerate(card.outer)}
    return inner | outer


def _damaged(why: str) -> AdapterInvalid:
    return AdapterInvalid(WEIGHTS_FILE, why)


def _entry(name: str, value: Any, data_begin: int) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise AdapterInvalid(name, f"{shown(value)} is not dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise AdapterInvalid(name, f"dtype: {shown(dtype)} is not {', '.join(ELEMENT_BYTES)}")
    if not _is_numbers(shape) or len(shape) > 8:
        raise AdapterInvalid(name, f"shape: {shown(shape)} is no shape")
    if not _is_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise AdapterInvalid(name, f"data_offsets: {shown(offsets)} are no two ends")
    num_bytes = offsets[1] - offsets[0]
    expected = math.prod(shape) * ELEMENT_BYTES[dtype]
    if num_bytes != expected:
        raise AdapterInvalid(
            name, f"data_offsets: {num_bytes} bytes, {shown(shape)} of {dtype} has {expected}"
        )
    return TensorEntry(name, dtype, tuple(shape), data_begin + offsets[0], num_bytes)


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        type(each) is int and 0 <= each < 1 << 62 for each in value
    )


def _check_places(entries: list[TensorEntry], begin: int, file_bytes: int) -> None:
    """All bytes of the file are some tensor's, and none is two's."""
    placed = sorted(entries, key=lambda each: (each.begin, each.num_bytes))
    if placed[0].begin != begin:
        raise AdapterInvalid(placed[0].name, "data_offsets: bytes before it are no tensor's")
    for one, other in pairwise(placed):
        if one.begin + one.num_bytes != other.begin:
            raise AdapterInvalid(
                other.name, f"data_offsets: does not begin where {shown(one.name)} ends"
            )
    end = placed[-1].begin + placed[-1].num_bytes
    if end != file_bytes:
        what = "truncated" if file_bytes < end else "bytes behind its tensors"
        raise _damaged(f"{what}: {file_bytes} bytes, its tensors end at {end}")


def _split(entry: TensorEntry) -> tuple[str, str]:
    """The module that a tensor is for, and which of its tensors it is."""
    for part, why in _REFUSED_PARTS.items():
        if part in entry.name:
            raise AdapterInvalid(entry.name, why)
    for kind in (_A, _B, _BASE):
        if entry.name.startswith(PREFIX) and entry.name.endswith(kind):
            return entry.name[len(PREFIX) : -len(kind)], kind
    raise AdapterInvalid(entry.name, f"is not named {PREFIX}...{_A} or {_B}")


def _check_base(entry: TensorEntry, place: _Place) -> None:
    expected = (place.target.num_out, place.target.num_in)
    if place.layer >= 0 or entry.shape != expected:
        raise AdapterInvalid(
            entry.name, f"{shown(list(entry.shape))} is no copy of an outer layer of the base"
        )


def _terms(config: AdapterConfig, names: list[str]) -> tuple[dict[str, int], dict[str, float]]:
    """Rank and scale of each module, as the config has them."""
    rank_keys = first_matches("rank_pattern", config.rank_pattern, names)
    alpha_keys = first_matches("alpha_pattern", config.alpha_pattern, names)
    ranks: dict[str, int] = {}
    scales: dict[str, float] = {}
    for name in names:
        key, alpha_key = rank_keys.get(name), alpha_keys.get(name)
        rank = config.rank if key is None else config.rank_pattern[key]
        alpha = config.alpha if alpha_key is None else config.alpha_pattern[alpha_key]
        ranks[name], scales[name] = rank, scale_of(alpha, rank, config.is_rslora)
    return ranks, scales


def _module(
    name: str,
    place: _Place,
    pair: Mapping[str, TensorEntry],
    rank: int,
    scale: float,
    config: AdapterConfig,
) -> ModuleTensors:
    for kind, other in ((_A, _B), (_B, _A)):
        if kind not in pair:
            raise AdapterInvalid(pair[other].name, f"there is no {PREFIX}{name}{kind}")
    if config.layers is not None and place.layer not in config.layers:
        raise AdapterInvalid(
            pair[_A].name, f"is of no layer in layers_to_transform: {shown(sorted(config.layers))}"
        )
    target = place.target
    for kind, expected in ((_A, (rank, target.num_in)), (_B, (target.num_out, rank))):
        if pair[kind].shape != expected:
            raise AdapterInvalid(
                pair[kind].name,
                f"shape {list(pair[kind].shape)}, the base and rank {rank} of the config ask for"
                f" {list(expected)}",
            )
    return ModuleTensors(name, target, place.number, place.layer, rank, scale, pair[_A], pair[_B])
