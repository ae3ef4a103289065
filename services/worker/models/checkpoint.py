"""What a model's small files and the headers of its large ones say, without torch.

A checkpoint that is quantized, damaged or not all there is refused before anything of it is loaded.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import ConfigError

REFUSED = 3  # status of a `dry_load` that a model does not pass

# Of architectures that generate text.
GENERATIVE_ENDS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
NAMED_MAX = 3  # tensors in an error
CONFIG = "config.json"
WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"

# Buffers that hold no weights: causal masks and frequencies of old checkpoints, counts of batches.
NO_WEIGHTS = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|position_ids|num_batches_tracked|"
    r"(attn|attention)\.(masked_)?bias)$"
)
# Where programs that quantize say so: keys of the config, and files beside it.
QUANTIZED_KEYS = ("quantization_config", "compression_config", "quantization")
QUANTIZED_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
QUANTIZED_NAMES = {
    "gptq": "GPTQ", "awq": "AWQ", "fp8": "FP8", "fbgemm_fp8": "FP8", "mxfp4": "MXFP4",
    "modelopt": "ModelOpt", "bitnet": "BitNet",
}  # fmt: skip
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
NARROW = re.compile(r"F[468]_|F4|F8")  # dtypes of elements that are nothing without their scales
WORD = re.compile(r"[\w.-]{1,40}")


@dataclass(slots=True)
class Checkpoint:
    """Attributes:
    num_bytes: of all files with weights.
    values: numbers in its tensors, by dtype as safetensors calls it; empty: pickled.
    is_generative: its architecture generates text.
    """

    num_tensors: int = 0
    num_bytes: int = 0
    values: dict[str, int] = field(default_factory=dict)
    is_generative: bool = False

    def bytes_as(self, dtype: str) -> int:
        """Of its weights in memory.

        Args:
            dtype: ``auto``, or what they become when they are loaded.

        >>> Checkpoint(2, 400, {"F32": 100}).bytes_as("bfloat16")
        200
        """
        if dtype not in ELEMENT_BYTES or not self.values:
            return self.num_bytes
        return sum(self.values.values()) * ELEMENT_BYTES[dtype]

    def add(self, shard: "Checkpoint") -> None:
        """Count another file."""
        self.num_tensors += shard.num_tensors
        self.num_bytes += shard.num_bytes
        for dtype, num in shard.values.items():
            self.values[dtype] = self.values.get(dtype, 0) + num


def check_checkpoint(
    source: str, *, may_be_quantized: bool = False, has_weights: bool = True
) -> Checkpoint:
    """See that a folder holds a checkpoint whose files are whole: of each shard that its index
    names, each tensor once, where it says.

    Args:
        source: a folder; of a hub id, whose files are fetched as its index says, nothing is seen.
        may_be_quantized: for another engine than our own.
        has_weights: if not, they are still to be fetched, and only the config is looked at.

    Raises:
        ConfigError: it does not; names the file or tensor.
    """
    folder = Path(source)
    if not folder.is_dir():
        return Checkpoint()
    config = read_config(folder)
    if not may_be_quantized and (how := quantization(folder, config)) is not None:
        raise quantized(source, how)
    architectures = config.get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    is_generative = first.endswith(GENERATIVE_ENDS)
    if not has_weights:
        return Checkpoint(is_generative=is_generative)
    # In the order in which transformers looks for them.
    names = (WHOLE, WHOLE + INDEX, PICKLED, PICKLED + INDEX)
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise ConfigError(
            f"cannot load model {source!r}: there are no weights in it: none of {', '.join(names)}"
        )
    if found.suffix == ".json":
        checkpoint = _check_index(folder, found)
    elif found.name == WHOLE:
        _, checkpoint = _read_header(source, found)
    else:
        checkpoint = Checkpoint(num_bytes=found.stat().st_size)
    narrow = sorted(dtype for dtype in checkpoint.values if NARROW.match(dtype))
    if narrow and not may_be_quantized:
        raise quantized(source, f"{narrow[0]} tensors")
    checkpoint.is_generative = is_generative
    return checkpoint


def read_config(folder: Path) -> dict[str, Any]:
    """The object in its `config.json`.

    Raises:
        ConfigError: there is none.
    """
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise ConfigError(
            f"cannot load model {str(folder)!r}: its {CONFIG} cannot be read: {why}"
        ) from None
    if not isinstance(config, dict):
        raise ConfigError(f"cannot load model {str(folder)!r}: its {CONFIG} holds no object")
    return config


def quantization(folder: Path, config: Mapping[str, Any]) -> str | None:
    """How a model's weights are quantized, for people; None: they are not.

    >>> quantization(Path("/none"), {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    'GPTQ, 4 bits'
    """
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        for key in QUANTIZED_KEYS:
            if found := part.get(key):
                return _how(found if isinstance(found, Mapping) else {}, key)
    for name, method in QUANTIZED_FILES.items():
        if (folder / name).is_file():
            return f"{QUANTIZED_NAMES[method]}, says {name}"
    return None


def quantized(source: str, how: str) -> ConfigError:
    """What is said of a model that is quantized."""
    return ConfigError(
        f"cannot load model {source!r}: its weights are quantized ({how}), which this engine does "
        "not compute: serve it by vLLM (up --engine vllm), or take the model's weights that are "
        "not quantized, or a GGUF file of it"
    )


def refusal(source: str, names: Iterable[str], why: str) -> ConfigError:
    """A refusal of a model by the names of its tensors."""
    ordered = sorted(names, key=_by_number)
    more = f" and {len(ordered) - NAMED_MAX} more" if len(ordered) > NAMED_MAX else ""
    which = f"tensor {ordered[0]}" if len(ordered) == 1 else "tensors "
    which += "" if len(ordered) == 1 else ", ".join(ordered[:NAMED_MAX]) + more
    verb = "" if why.startswith("cannot") else " is" if len(ordered) == 1 else " are"
    return ConfigError(f"cannot load model {source!r}: {which}{verb} {why}")


def _how(found: Mapping[str, Any], key: str) -> str:
    method = str(found.get("quant_method") or found.get("quant_algo") or "")
    if not method and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        method = "bitsandbytes"
    name = QUANTIZED_NAMES.get(method) or (method if WORD.fullmatch(method) else key)
    bits = 4 if found.get("load_in_4bit") else 8 if found.get("load_in_8bit") else found.get("bits")
    return f"{name}, {bits} bits" if isinstance(bits, int) else name


def _check_index(folder: Path, index: Path) -> Checkpoint:
    try:
        places = json.loads(index.read_text())["weight_map"]
        files = {str(name): str(file) for name, file in places.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index}: cannot be read: {error!r}") from None
    checkpoint = Checkpoint()
    for file in sorted(set(files.values())):
        path = folder / file
        if not path.resolve().is_relative_to(folder.resolve()) and not path.is_symlink():
            raise ConfigError(f"{index.name}: {file!r} is outside of {folder}")
        if not path.is_file():
            raise refusal(str(folder), _of(files, file), f"missing: there is no {file}")
        if path.suffix == ".safetensors":
            checkpoint.add(_check_shard(folder, path, _of(files, file), files))
        else:
            checkpoint.add(Checkpoint(num_bytes=path.stat().st_size))
    return checkpoint


def _check_shard(
    folder: Path, path: Path, named: list[str], files: Mapping[str, str]
) -> Checkpoint:
    held, shard = _read_header(str(folder), path)
    if missing := [name for name in named if name not in held]:
        raise refusal(str(folder), missing, f"missing: {path.name} has it not")
    for name in sorted(held - set(named)):
        if name in files:
            raise refusal(str(folder), [name], f"there twice: in {path.name} and {files[name]}")
        if not NO_WEIGHTS.search(name):
            raise refusal(str(folder), [name], f"left over: {path.name} has it, the index not")
    return shard


def _read_header(source: str, path: Path) -> tuple[set[str], Checkpoint]:
    """Names and sizes of the tensors in a file, which is as long as they are."""
    from safetensors import SafetensorError, safe_open

    values: dict[str, int] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            for name in names:
                tensor = file.get_slice(name)
                num = 1
                for size in tensor.get_shape():
                    num *= size
                values[tensor.get_dtype()] = values.get(tensor.get_dtype(), 0) + num
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot load model {source!r}: {path.name}: damaged: {error}") from None
    return names, Checkpoint(len(names), path.stat().st_size, values)


def _of(files: Mapping[str, str], wanted: str) -> list[str]:
    return sorted(name for name, file in files.items() if file == wanted)


def _by_number(name: str) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
