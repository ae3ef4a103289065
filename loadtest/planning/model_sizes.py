"""What a model's own files say of its size. Nothing of it is loaded, and torch is not needed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.base.called import hint
from cli.models.catalog import DEMO, PACKAGED
from cli.models.prepare import CONFIG, check_model, fetch_config, find_model
from loadtest.planning.gguf_header import read_header
from loadtest.planning.gpus import ModelSizes
from shared.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TOKENS_MAX_DEFAULT = 2048  # as a worker takes it, where a config does not say
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "expert_count")


def sizes_of(source: str, models: Path) -> ModelSizes:
    """Of what `--model` names: a folder, a GGUF file, or a model that is here by its name. Of a
    model of the hub that is not here, its config alone is fetched.

    Raises:
        ConfigError: there is none, or its files do not say.
    """
    check_model(source)
    path = Path(source).expanduser()
    if path.is_file():
        return of_gguf(read_header(path), path.stem)
    folder = find_model(source, models)
    if folder is None:
        if source == DEMO or source in PACKAGED:
            raise ConfigError(
                f"--model {source}: not on this machine yet; `{hint('up')} --model {source}` makes "
                "it"
            )
        folder = fetch_config(source).parent
    return of_config(_read(folder / CONFIG, source), source, weights_bytes_of(folder))


def of_config(config: Mapping[str, Any], name: str, weights_bytes: int | None = None) -> ModelSizes:
    """By a `config.json` as transformers writes it.

    Args:
        weights_bytes: of the files with weights; None: they follow from the config.

    Raises:
        ConfigError: it lacks a number, or is of a mixture of experts.
    """
    if isinstance(text := config.get("text_config"), Mapping):
        config = {**config, **text}
    if any(config.get(key) for key in EXPERTS):
        raise ConfigError(
            f"--model {name}: a mixture of experts, of which a pass reads a part that its config "
            "does not say: write its times into a profile"
        )
    hidden = _number(config, name, "hidden_size", "n_embd")
    num_layers = _number(config, name, "num_hidden_layers", "n_layer")
    num_heads = _number(config, name, "num_attention_heads", "n_head")
    num_kv_heads = int(config.get("num_key_value_heads") or num_heads)
    head_size = int(config.get("head_dim") or hidden // num_heads)
    inner = int(config.get("intermediate_size") or config.get("n_inner") or 4 * hidden)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    if dtype not in DTYPE_BYTES:
        raise ConfigError(
            f"--model {name}: its dtype {dtype!r} is none of {', '.join(DTYPE_BYTES)}"
        )
    embedding = _number(config, name, "vocab_size") * hidden
    attention = 2 * hidden * head_size * (num_heads + num_kv_heads)
    computed = num_layers * (attention + 3 * hidden * inner) + embedding
    if not config.get("tie_word_embeddings", False):
        computed += embedding
    dtype_bytes = DTYPE_BYTES[dtype]
    tokens_max = config.get("max_position_embeddings") or config.get("n_positions")
    return ModelSizes(
        name=name,
        num_weights=computed if weights_bytes is None else weights_bytes // dtype_bytes,
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        dtype_bytes=dtype_bytes,
        tokens_max=int(tokens_max or TOKENS_MAX_DEFAULT),
    )


def of_gguf(header: Mapping[str, Any], name: str) -> ModelSizes:
    """By what a GGUF file says of itself, served as bfloat16.

    Raises:
        ConfigError: it lacks a number, or is of a mixture of experts.
    """
    family = str(header.get("general.architecture", ""))
    own = {
        key.removeprefix(f"{family}."): value
        for key, value in header.items()
        if key.startswith(f"{family}.")
    }
    if own.get("expert_count"):
        raise ConfigError(
            f"--model {name}: a mixture of experts, of which a pass reads a part that the file "
            "does not say: write its times into a profile"
        )
    num_heads = _number(own, name, "attention.head_count")
    return ModelSizes(
        name=name,
        num_weights=_number(header, name, "num_weights"),
        num_layers=_number(own, name, "block_count"),
        num_kv_heads=int(own.get("attention.head_count_kv") or num_heads),
        head_size=int(
            own.get("attention.key_length") or _number(own, name, "embedding_length") // num_heads
        ),
        dtype_bytes=2,
        tokens_max=_number(own, name, "context_length"),
    )


def weights_bytes_of(folder: Path) -> int | None:
    """Of the files with weights in it; None: there are none."""
    files = list(folder.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) if files else None


def _read(file: Path, name: str) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model {name}: {file} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"--model {name}: {file} holds no object")
    return config


def _number(values: Mapping[str, Any], name: str, *keys: str) -> int:
    """The first of these that is there, above 0."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise ConfigError(f"--model {name}: its files do not say {keys[0]}: give a profile")
