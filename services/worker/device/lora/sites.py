"""Where in a model adapters can add: its linear layers, by the names that PEFT gives them.

It knows no model by its name. Layers that `device.layers` put in the place of transformers' own are
found like those; linear layers that share a product are one site, so that they share a shrink.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from kernels.sgmv.interface import Site
from services.worker.device.layers.merged import Sibling
from services.worker.device.layers.packed import PackedLinear
from shared.wire.messages import LoraCard, LoraTarget


@dataclass(frozen=True, slots=True)
class PlacedSite:
    """Attributes:
    module: whose input and output it is.
    layer: decoder layer; of an outer site, the last one.
    is_outer: it sees the hidden states of wanted logits, not those of all tokens.
    """

    module: nn.Module
    layer: int
    site: Site
    is_outer: bool


def lora_card(model: Any, num_layers: int, dtype: torch.dtype, page_bytes: int) -> LoraCard | None:
    """What adapters a transformers decoder takes; None: none."""
    path = layers_path(model, num_layers)
    if path is None:
        return None
    layers = list(model.get_submodule(path))
    targets = _targets(layers[0])
    for layer in layers[1:]:
        known = _targets(layer)
        targets = {name: shape for name, shape in targets.items() if known.get(name) == shape}
    if not targets:
        return None
    head = model.get_output_embeddings()
    outer = {
        name: shape
        for name, module in model.named_modules()
        if module is head and (shape := _shape(module)) is not None
    }
    return LoraCard(
        layers_path=path,
        num_layers=num_layers,
        element_bytes=dtype.itemsize,
        page_bytes=page_bytes,
        targets=_as_targets(targets),
        outer=_as_targets(outer),
        dtype=str(dtype).removeprefix("torch."),
    )


def find_sites(model: Any, card: LoraCard) -> Iterator[PlacedSite]:
    """Every place where an adapter can add."""
    number = {each.name: at for at, each in enumerate((*card.targets, *card.outer))}
    for layer in range(card.num_layers):
        parent = model.get_submodule(f"{card.layers_path}.{layer}")
        merged: dict[nn.Module, list[tuple[int, Sibling]]] = {}
        for each in card.targets:
            module = parent.get_submodule(each.name)
            if isinstance(module, Sibling):
                merged.setdefault(module.product, []).append((number[each.name], module))
            else:
                site = Site((number[each.name],), (0,), (each.num_out,))
                yield PlacedSite(module, layer, site, is_outer=False)
        for product, siblings in merged.items():
            site = Site(
                tuple(at for at, _ in siblings),
                tuple(sibling.first_column for _, sibling in siblings),
                tuple(sibling.out_features for _, sibling in siblings),
            )
            yield PlacedSite(product, layer, site, is_outer=False)
    for each in card.outer:
        site = Site((number[each.name],), (0,), (each.num_out,))
        yield PlacedSite(model.get_submodule(each.name), card.num_layers - 1, site, is_outer=True)


def inner_sites(model: Any, card: LoraCard) -> list[Site]:
    """The sites that layers have, in the order of their first layer."""
    return list(dict.fromkeys(each.site for each in find_sites(model, card) if not each.is_outer))


def layers_path(model: nn.Module, num_layers: int) -> str | None:
    """The list of decoder layers, the outermost of its length."""
    paths = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers
    ]
    return min(paths, key=lambda path: (path.count("."), path), default=None)


def _targets(layer: nn.Module) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer in a decoder layer."""
    return {
        name: shape
        for name, module in layer.named_modules()
        if (shape := _shape(module)) is not None
    }


def _shape(module: nn.Module) -> tuple[int, int] | None:
    if isinstance(module, nn.Linear | PackedLinear | Sibling):
        return module.in_features, module.out_features
    if isinstance(module, Conv1D):
        return module.nx, module.nf
    return None


def _as_targets(shapes: dict[str, tuple[int, int]]) -> list[LoraTarget]:
    return [
        LoraTarget(name=name, num_in=num_in, num_out=num_out)
        for name, (num_in, num_out) in shapes.items()
    ]
