"""Small adapters for tests of those who only hand them on."""

from pathlib import Path
from typing import Any

from loadtest import adapters
from loadtest.adapters import Recipe, modules_of
from shared.wire.messages import LoraCard, LoraTarget
from tests.unit.shared.adapters.adapter_files import change_config

CARD = LoraCard(
    layers_path="model.layers",
    num_layers=2,
    element_bytes=4,
    page_bytes=4096,
    targets=[
        LoraTarget(name="self_attn.q_proj", num_in=16, num_out=16),
        LoraTarget(name="mlp.up_proj", num_in=16, num_out=32),
    ],
)


def write_adapter(folder: Path, seed: int = 0, rank: int = 4, **config: Any) -> Path:
    """An adapter for `CARD` on all of its targets; returns the folder."""
    adapters.write_adapter(folder, modules_of(CARD), Recipe(seed=seed, rank=rank))
    change_config(folder, **config)
    return folder
