"""An encoder or a classifier in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.worker.oneshot.inputs import ImageInputs, TextInputs
from shared.wire.messages import Modality, Task

Head = Callable[[Any, dict[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedOneshot:
    """A model in memory.

    Attributes:
        module: the transformers model, in eval mode on its device.
        inputs: what it takes.
        head: from its outputs and arguments to ``[batch, num_values]`` float32.
        labels: of a classifier, by index.
        fingerprint: hash of weights, files, dtype and task.
    """

    module: Any
    source: str
    task: Task
    modality: Modality
    inputs: TextInputs | ImageInputs
    head: Head
    num_values: int
    labels: list[str]
    fingerprint: str

    def compute(self, inputs: Sequence[Any], variant: int) -> torch.Tensor:
        """One forward pass; ``[len(inputs), num_values]`` float32, on the device."""
        with torch.inference_mode():
            return self.head(*self.forward(inputs, variant))

    def forward(self, inputs: Sequence[Any], variant: int) -> tuple[Any, dict[str, torch.Tensor]]:
        """One forward pass: the model's own outputs, and the arguments it had."""
        with torch.inference_mode():
            arguments = self.inputs.batch(inputs, variant, self.module.device)
            return self.module(**arguments), arguments
