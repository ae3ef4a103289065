"""What adapters add to a model's linear layers, from hooks on them: no module is replaced, and a
step without adapters pays for a look.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernels.sgmv import Site, add_lora
from services.worker.device.base.step import AnySegments, StepContext, running_step
from services.worker.device.lora.sites import PlacedSite, find_sites
from services.worker.device.lora.tables import bits_of
from shared.wire.messages import LoraCard


def attach(model: Any, card: LoraCard, sites: Sequence[Site]) -> None:
    """Let adapters of running steps add to this model's layers.

    Args:
        sites: those in its layers, by number.
    """
    numbers = {site: number for number, site in enumerate(sites)}
    for placed in find_sites(model, card):
        if placed.is_outer:
            hook = _Hook(placed, range(card.num_layers), None)
        else:
            hook = _Hook(placed, (placed.layer,), numbers[placed.site])
        placed.module.register_forward_hook(hook)


class _Hook:
    """Runs some fifty times a step, each time after a product that left little of it in the caches:
    so it touches as little as it can."""

    __slots__ = ("_layer", "_layers", "_number", "_site", "_targets")

    def __init__(self, placed: PlacedSite, layers: Sequence[int], number: int | None) -> None:
        """Args:
        layers: that have pages of it.
        number: helpers know it by it; None: it is an outer one, which they leave out.
        """
        self._layers = layers
        self._number = number
        self._layer = placed.layer
        self._site = placed.site
        self._targets = bits_of(placed.site.targets)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        step = running_step()
        if not isinstance(step, StepContext) or (lora := step.lora) is None:
            return
        if not lora.targets & self._targets:
            return
        x, y = args[0].flatten(0, -2), output.flatten(0, -2)
        segments = lora.wanted if self._number is None else lora.segments
        if step.streams:
            segments = self._see_to(step, x, y, segments)
        add_lora(x, y, step.pool, self._layer, self._site, segments, lora.tables)

    def _see_to(
        self, step: StepContext, x: torch.Tensor, y: torch.Tensor, segments: AnySegments
    ) -> AnySegments:
        """Wait for what is not here, or have helpers add it; returns what is left to add."""
        if self._number is not None and (away := step.away_from(self._layer)):
            assert step.assistance is not None
            if step.assistance.add(self._layer, self._number, x, y, away):
                step.await_adapters(self._layers, away)
                return step.assistance.rest(segments, away)
            step.assistance = None
        step.await_adapters(self._layers)
        return segments
