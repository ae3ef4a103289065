"""The forward pass of a transformers module, as a step calls it."""

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

import torch
from torch import nn

from services.worker.device.base.step import StepContext, running, running_step
from services.worker.device.lora.additions import LoraAddition


class ModuleForward:
    """transformers' own forward: for every model that this engine serves.

    Args:
        module: built with our attention, which finds the running step.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(
        self, step: StepContext, tokens: torch.Tensor, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """See `Forward`."""
        with running(step):
            logits: torch.Tensor = self._module(
                tokens[None],
                position_ids=step.positions[None],
                use_cache=False,
                logits_to_keep=0 if wanted is None else wanted,
            ).logits[0]
        return logits

    def take_adapters(self, additions: Mapping[nn.Module, LoraAddition]) -> None:
        """See `Forward`."""
        for module, addition in additions.items():
            module.register_forward_hook(partial(_add, addition))

    def sum_outputs(
        self, modules: Set[nn.Module], sum_ranks: Callable[[torch.Tensor], None]
    ) -> None:
        """See `Forward`."""
        for module in modules:
            module.register_forward_hook(partial(_sum, sum_ranks))


def _add(
    addition: LoraAddition, module: nn.Module, args: tuple[Any, ...], output: torch.Tensor
) -> None:
    step = running_step()
    if isinstance(step, StepContext) and step.lora is not None:
        addition(step, args[0].flatten(0, -2), output.flatten(0, -2))


def _sum(
    sum_ranks: Callable[[torch.Tensor], None],
    module: nn.Module,
    args: tuple[Any, ...],
    output: torch.Tensor,
) -> None:
    sum_ranks(output)
