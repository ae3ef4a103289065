"""PEFT adapters to measure and test with, made from a seed: ``python -m loadtest.adapters --help``.

B is random: with PEFT's zero B an adapter changes nothing, and every test would pass on the base
model alone.
"""

import argparse
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shared.adapters.config import CONFIG_FILE, scale_of
from shared.adapters.patterns import first_matches
from shared.adapters.tensors import PREFIX, WEIGHTS_FILE
from shared.adapters.values import convert
from shared.wire.messages.adapters import LoraCard

STRENGTH = 0.5
FILE_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Module:
    """A linear layer, by its name in the model."""

    name: str
    num_in: int
    num_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an adapter is to be.

    Attributes:
        seed: of all values; the same recipe gives the same bytes.
        targets: ends of names, such as ``q_proj``; empty: all modules.
        layers: those with tensors; None: all.
        rank_pattern: as in PEFT; so is `alpha_pattern`.
        dtype: of the file, as safetensors calls it.
        strength: of what an adapter adds beside the size of a layer's input; 0.5 is about what the
            layer itself gives, so the output is surely another, and finite.
    """

    seed: int = 0
    rank: int = 8
    alpha: float = 16
    targets: Sequence[str] = ()
    layers: Sequence[int] | None = None
    is_rslora: bool = False
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    dtype: str = "F32"
    strength: float = STRENGTH
    base_name: str = ""


def write_adapter(folder: Path, modules: Iterable[Module], recipe: Recipe) -> Path:
    """A PEFT adapter for these modules, those of the recipe's targets and layers. Returns its
    folder."""
    chosen = [each for each in modules if _is_wanted(each.name, recipe)]
    assert chosen, f"no module ends with one of {list(recipe.targets)}"
    names = [each.name for each in chosen]
    rank_keys = first_matches("rank_pattern", recipe.rank_pattern, names)
    alpha_keys = first_matches("alpha_pattern", recipe.alpha_pattern, names)
    random = np.random.default_rng(recipe.seed)
    tensors: dict[str, np.ndarray[Any, np.dtype[np.float32]]] = {}
    for each in chosen:
        key, alpha_key = rank_keys.get(each.name), alpha_keys.get(each.name)
        rank = recipe.rank if key is None else recipe.rank_pattern[key]
        alpha = recipe.alpha if alpha_key is None else recipe.alpha_pattern[alpha_key]
        scale = scale_of(alpha, rank, recipe.is_rslora)
        a = random.standard_normal((rank, each.num_in), np.float32) / math.sqrt(each.num_in)
        b = random.standard_normal((each.num_out, rank), np.float32)
        tensors[f"{PREFIX}{each.name}.lora_A.weight"] = a
        tensors[f"{PREFIX}{each.name}.lora_B.weight"] = b * (
            recipe.strength / (scale * math.sqrt(rank))
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(_config(recipe, names), indent=2))
    write_safetensors(folder / WEIGHTS_FILE, tensors, recipe.dtype)
    return folder


def modules_of(card: LoraCard) -> list[Module]:
    """All that an adapter of this model may have."""
    inner = [
        Module(f"{card.layers_path}.{layer}.{each.name}", each.num_in, each.num_out)
        for layer in range(card.num_layers)
        for each in card.targets
    ]
    return inner + [Module(each.name, each.num_in, each.num_out) for each in card.outer]


def modules_in(model: Path) -> list[Module]:
    """The linear layers of a model's safetensors files: weights of two dimensions, without its
    embeddings and its head."""
    turned = json.loads((model / "config.json").read_text()).get("model_type") == "gpt2"  # Conv1D
    found: dict[str, Module] = {}
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            shape = entry.get("shape", ())
            if name.endswith(".weight") and len(shape) == 2 and re.search(r"\.\d+\.", name):
                num_out, num_in = reversed(shape) if turned else shape
                module = name.removesuffix(".weight")
                found[module] = Module(module, num_in, num_out)
    return [found[name] for name in sorted(found)]


def write_safetensors(
    path: Path, tensors: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]], dtype: str
) -> None:
    """A safetensors file of float32 values, rounded to `dtype`, which may be one that numpy
    lacks."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    end = 0
    for name, values in tensors.items():
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        parts.append(convert(bits, "F32", FILE_DTYPES[dtype]).tobytes())
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(b"".join([len(raw).to_bytes(8, "little"), raw, *parts]))


def _is_wanted(name: str, recipe: Recipe) -> bool:
    layer = re.search(r"\.(\d+)\.", name)
    if recipe.layers is not None and not (layer and int(layer[1]) in recipe.layers):
        return False
    ends = [f".{name}".endswith(f".{each}") for each in recipe.targets]
    return not recipe.targets or any(ends)


def _config(recipe: Recipe, names: Sequence[str]) -> dict[str, Any]:
    """As PEFT writes it, without what is at its default."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": recipe.base_name or None,
        "inference_mode": True,
        "r": recipe.rank,
        "lora_alpha": recipe.alpha,
        "lora_dropout": 0.0,
        "use_rslora": recipe.is_rslora,
        "rank_pattern": dict(recipe.rank_pattern),
        "alpha_pattern": dict(recipe.alpha_pattern),
        "target_modules": sorted(names),
        "bias": "none",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.adapters", description=__doc__)
    parser.add_argument("folder", type=Path, help="to write to; with --count, folders in it")
    parser.add_argument("--model", type=Path, required=True, help="folder of a model")
    parser.add_argument("--count", type=int, default=0, help="so many, of one seed after another")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", default="8", help="with commas between: one after the other")
    parser.add_argument("--alpha", type=float, default=16)
    parser.add_argument("--targets", default="", help="such as q_proj,v_proj; none: all linears")
    parser.add_argument("--rslora", action="store_true")
    parser.add_argument("--dtype", default="F32", choices=sorted(FILE_DTYPES))
    parser.add_argument("--strength", type=float, default=STRENGTH)
    args = parser.parse_args()
    modules, ranks = modules_in(args.model), [int(each) for each in args.ranks.split(",")]
    for at in range(args.count or 1):
        recipe = Recipe(
            seed=args.seed + at,
            rank=ranks[at % len(ranks)],
            alpha=args.alpha,
            targets=[each for each in args.targets.split(",") if each],
            is_rslora=args.rslora,
            dtype=args.dtype,
            strength=args.strength,
            base_name=str(args.model),
        )
        name = f"{args.folder.name}-{recipe.seed}-r{recipe.rank}"
        print(write_adapter(args.folder / name if args.count else args.folder, modules, recipe))


if __name__ == "__main__":
    main()
