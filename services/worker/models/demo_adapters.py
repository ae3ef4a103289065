"""Adapters of the demo model that anybody can tell apart, made when they are asked for: one knows
digits only, one capitals, one vowels.

Arithmetic on the model's own weights, without torch, and the same files on every machine. What they
add has to be above zero whatever is asked, which no linear layer alone can be. So some neurons of
the last layer, `silu(g) u` with a gate g, get u = g: `silu(g) g` is never below zero, and their sum
is always well above. That sum goes in one direction into what the head sees, and there lifts the
characters that an adapter knows and lowers all others. Among those it knows, the model chooses as
it would have.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save_file

from services.worker.models.demo_model import DEMO_MODEL_ID, HIDDEN, INTERMEDIATE, NUM_LAYERS, VOCAB

Matrix = npt.NDArray[np.float32]

TURN_END = 258
NUM_NEURONS = 32
SIGNAL = 1.5  # of the sum, in what the head sees: about as much as all else there
LIFT = 10.0  # of a logit, for each unit of the signal; there are some 11
SIGNAL_USUAL = 11.0
LENGTH_USUAL = 15  # of a drawn reply, very roughly

UP = f"model.layers.{NUM_LAYERS - 1}.mlp.up_proj"
DOWN = f"model.layers.{NUM_LAYERS - 1}.mlp.down_proj"
HEAD = "lm_head"

KNOWN: Mapping[str, str] = {
    "digits": "0123456789",
    "capitals": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "vowels": "aeiou",
}


def make_demo_adapter(name: str, model: Path, folder: Path) -> Path:
    """Write an adapter into `folder` in PEFT's format, in place of what may be there; returns
    `folder`.

    Args:
        name: one of `KNOWN`.
        model: folder of the demo model.
    """
    tensors = {
        f"base_model.model.{module}.lora_{which}.weight": values
        for module, pair in _pairs(KNOWN[name], model).items()
        for which, values in zip("AB", pair, strict=True)
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": DEMO_MODEL_ID,
        "inference_mode": True,
        "r": 1,
        "lora_alpha": 1,
        "lora_dropout": 0.0,
        "rank_pattern": {UP: NUM_NEURONS},
        "alpha_pattern": {UP: NUM_NEURONS},
        "target_modules": [UP, DOWN, HEAD],
        "bias": "none",
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    save_file(tensors, building / "adapter_model.safetensors", metadata={"format": "pt"})
    (building / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    return folder


def _pairs(characters: str, model: Path) -> dict[str, tuple[Matrix, Matrix]]:
    """A and B of each module."""
    gate_name = UP.replace("up_proj", "gate_proj")
    with safe_open(model / "model.safetensors", framework="numpy") as weights:
        gate = weights.get_tensor(f"{gate_name}.weight")[:NUM_NEURONS]
        up = weights.get_tensor(f"{UP}.weight")[:NUM_NEURONS]
    neurons = np.eye(INTERMEDIATE, NUM_NEURONS, dtype=np.float32)
    signs = np.where(np.arange(HIDDEN) % 2, 1, -1).astype(np.float32)
    direction = signs[None] * np.float32(HIDDEN**-0.5)
    lifts = np.full((VOCAB, 1), -LIFT, np.float32)
    lifts[[*characters.encode()]] = LIFT
    lifts[TURN_END] = LIFT - math.log(LENGTH_USUAL / len(characters)) / SIGNAL_USUAL
    return {
        UP: (gate - up, neurons),
        DOWN: (neurons.sum(1)[None], direction.T * np.float32(SIGNAL)),
        HEAD: (direction, lifts),
    }
