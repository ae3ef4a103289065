"""What a helper's channel needs of the stream that steps are launched on: copies, and words that
the device writes and waits for, in the order of what was launched.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


class DeviceStream(Protocol):
    """None of its calls waits for what it launches."""

    def register(self, memory: npt.NDArray[np.uint8], holder: object) -> None:
        """Let the device read and write this memory of the host itself, as long as its holder
        lives.

        Raises:
            SymphonyError: it cannot.
        """
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """From or to registered memory. Both alike in shape and dtype, and contiguous."""
        ...

    def write(self, address: int, value: int) -> None:
        """Write a word of registered memory, behind all that was launched before."""
        ...

    def wait(self, address: int, value: int) -> None:
        """What is launched from now on runs when this word of registered memory is at least
        `value`."""
        ...

    def mark(self) -> Any:
        """A point in the stream."""
        ...

    def between_ns(self, first: Any, last: Any) -> int:
        """What the stream took from one point to another one, once it is past both."""
        ...
