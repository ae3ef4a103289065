"""From a GGUF file to a folder in transformers' format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cli.models.gguf.architectures import ARCHITECTURES, Architecture
from cli.models.gguf.keys import Metadata
from cli.models.gguf.places import TIED, Place, check_places, find_places
from cli.models.gguf.reading import Reading
from cli.models.gguf.tokenizer import build_tokenizer, end_ids, read_special, vocabulary
from shared.errors import ConfigError
from shared.runtime.lean_imports import import_transformers

FIRST_TENSOR = "token_embd.weight"
# How the makers advise to sample; other sampling keys are of samplers that there are none of.
SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def convert(source: Path, folder: Path) -> list[str]:
    """Write the model of `source` into the empty `folder`; remarks for the user.

    Weights become bfloat16, those of a file that holds nothing smaller float32.

    Raises:
        ConfigError: not a GGUF file, or one that cannot be held exactly: names the key or tensor.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, IndexError, KeyError, TypeError, AssertionError) as error:
        raise ConfigError(f"{source}: not a GGUF file: {error}") from None
    try:
        return _convert(fields, {each.name: each for each in reader.tensors}, folder)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.message}") from error


def _convert(fields: Mapping[str, Any], tensors: Mapping[str, Any], folder: Path) -> list[str]:
    name = str(fields.get("general.architecture", ""))
    keys = Metadata(fields, name)
    if name not in ARCHITECTURES:
        raise keys.refusal(
            "general.architecture", f"is none of those supported: {', '.join(ARCHITECTURES)}"
        )
    keys.require("general.type", "model", why="is not a model")
    keys.require("split.count", 0, 1, why="is one part of a model: join them (llama-gguf-split)")
    shapes = {each.name: tuple(int(size) for size in each.shape[::-1]) for each in tensors.values()}
    reading = Reading(keys, shapes, lambda tensor: _dequantize(tensors[tensor]))
    config = _read_config(reading, ARCHITECTURES[name])
    tokens, types = vocabulary(keys)
    ids = read_special(keys, len(tokens))
    tokenizer = build_tokenizer(keys, name, ids)
    advice = {word: keys.number(key) for key, word in SAMPLING.items() if keys.has(key)}
    if "top_k" in advice:
        advice["top_k"] = int(advice["top_k"])
    keys.require_neutral()
    keys.finish(ARCHITECTURES)
    _write_model(config, ids, reading, ARCHITECTURES[name], tensors, folder)
    _write_generation(folder, ids, end_ids(ids, tokens, types), advice)
    tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    return reading.remarks


def _read_config(reading: Reading, architecture: Architecture) -> dict[str, Any]:
    reading.config["model_type"] = architecture.model_type
    architecture.read(reading)
    held = {name.split(".")[1] for name in reading.shapes if name.startswith("blk.")}
    if len(held) < reading.config["num_hidden_layers"]:
        raise reading.keys.refusal("block_count", f"there are tensors of {len(held)} layers")
    num_rows = reading.shape(FIRST_TENSOR)[0]
    num_tokens = len(reading.keys.value("tokenizer.ggml.tokens") or [])
    stated = reading.keys.integer("vocab_size", num_rows)
    if max(stated, num_tokens) > num_rows:
        raise ConfigError(
            f"tensor {FIRST_TENSOR} has {num_rows} rows, for {num_tokens} tokens and vocab_size "
            f"{stated}"
        )
    reading.config["vocab_size"] = num_rows
    return reading.config


def _write_model(
    config: dict[str, Any],
    ids: Mapping[str, int],
    reading: Reading,
    architecture: Architecture,
    tensors: Mapping[str, Any],
    folder: Path,
) -> None:
    import_transformers()
    import torch
    from gguf import GGMLQuantizationType
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {name: ids.get(name) for name in ("bos", "eos", "padding")}
    named = {f"{name.removesuffix('ding')}_token_id": token for name, token in given.items()}
    is_float32 = all(each.tensor_type == GGMLQuantizationType.F32 for each in tensors.values())
    dtype = torch.float32 if is_float32 else torch.bfloat16
    try:
        made = AutoConfig.for_model(**config, **named)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(made, dtype=dtype)
    except (
        ArithmeticError, AssertionError, AttributeError, KeyError, RuntimeError, TypeError,
        ValueError, StrictDataclassError,
    ) as error:  # fmt: skip
        first_line = " ".join((str(error).strip() or type(error).__name__).split())
        raise ConfigError(f"transformers takes no such config: {first_line}") from error
    wanted = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    places = find_places(architecture, wanted, config)
    check_places(places, reading)
    values = {place.name: _load(place, tensors, dtype) for place in places}
    if TIED in wanted and TIED not in values:
        values[TIED] = values[_embedding(model, wanted)]
    model.load_state_dict(values, strict=True, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)


def _embedding(model: Any, wanted: Mapping[str, Any]) -> str:
    table = model.get_input_embeddings()
    return next(f"{name}.weight" for name, module in model.named_modules() if module is table)


def _load(place: Place, tensors: Mapping[str, Any], dtype: Any) -> Any:
    import torch

    built = place.build(_dequantize(tensors[source]) for source in place.sources)
    return torch.from_numpy(np.array(built, dtype=np.float32, order="C")).to(dtype)


def _dequantize(tensor: Any) -> "np.ndarray[Any, Any]":
    from gguf import dequantize

    try:
        values: np.ndarray[Any, Any] = dequantize(tensor.data, tensor.tensor_type)
    except (NotImplementedError, ValueError, KeyError) as error:
        kind = getattr(tensor.tensor_type, "name", tensor.tensor_type)
        raise ConfigError(f"tensor {tensor.name} is of type {kind}: {error}") from error
    return values.reshape(tuple(int(size) for size in tensor.shape[::-1]))


def _write_generation(
    folder: Path, ids: Mapping[str, int], ends: list[int], advice: Mapping[str, float]
) -> None:
    from transformers import GenerationConfig

    made = GenerationConfig(
        bos_token_id=ids.get("bos"), eos_token_id=ends or None, pad_token_id=ids.get("padding")
    )
    if advice.get("temperature", 1.0) > 0:
        made.update(do_sample=bool(advice), **advice)
    made.save_pretrained(folder)
