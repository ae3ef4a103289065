"""What the batching core asks its shell to do."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from services.scheduler.core.batching.job import Job

DropReason = Literal["late", "crowded", "no_gpu"]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send this batch to the GPU.

    Attributes:
        number: counts the dispatches of this core; names the batch in `on_batch_done`.
        start_at_ns: when the GPU is expected to begin.
        end_at_ns: when it is expected to be done.
    """

    number: int
    gpu: int
    model: Hashable
    jobs: list[Job]
    start_at_ns: int
    end_at_ns: int


@dataclass(frozen=True, slots=True)
class Drop:
    """These jobs will not run. ``late``: the deadline cannot be met; ``crowded``: left out
    so that the jobs behind can run in a larger batch; ``no_gpu``: nothing serves the model.
    """

    jobs: list[Job]
    reason: DropReason


Effect = Dispatch | Drop
