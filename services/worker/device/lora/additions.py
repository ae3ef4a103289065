"""What adapters add to the outputs of a model's linear layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernels.sgmv import Site, add_lora
from services.worker.device.base.step import AnySegments, StepContext
from services.worker.device.lora.sites import PlacedSite, find_sites
from services.worker.device.lora.tables import bits_of
from shared.wire.messages import LoraCard


def make_additions(
    model: Any, card: LoraCard, sites: Sequence[Site]
) -> dict[nn.Module, "LoraAddition"]:
    """By the module whose output they add to.

    Args:
        sites: those in the model's layers, by number.
    """
    numbers = {site: number for number, site in enumerate(sites)}
    additions = {}
    for placed in find_sites(model, card):
        layers = range(card.num_layers) if placed.is_outer else (placed.layer,)
        number = None if placed.is_outer else numbers[placed.site]
        additions[placed.module] = LoraAddition(placed, layers, number)
    return additions


class LoraAddition:
    """Runs some fifty times a step, each time after a product that left little of it in the caches:
    so it touches as little as it can.

    Args:
        layers: that have pages of it.
        number: helpers know it by it; None: it is an outer one, which they leave out.
    """

    __slots__ = ("_layer", "_layers", "_number", "_site", "_targets")

    def __init__(self, placed: PlacedSite, layers: Sequence[int], number: int | None) -> None:
        self._layers = layers
        self._number = number
        self._layer = placed.layer
        self._site = placed.site
        self._targets = bits_of(placed.site.targets)

    def __call__(self, step: StepContext, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add to ``y [T, out]``, in place, what a step's adapters make of ``x [T, in]``."""
        lora = step.lora
        if lora is None or not lora.targets & self._targets:
            return
        segments = lora.wanted if self._number is None else lora.segments
        if step.streams:
            segments = self._await(step, x, y, segments)
        add_lora(x, y, step.pool, self._layer, self._site, segments, lora.tables)

    def _await(
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
