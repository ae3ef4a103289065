"""Rows into a helper's memory, and what it made of them out of it: the only copies there are."""

import ctypes
from collections.abc import Sequence

import torch

from services.worker.device.assist.channel import Channel, Order


class HostHandoff:
    """For a model on the CPU.

    On a CUDA device both would be copies in stream order, and the stream would write and await the
    channel's words.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inputs = channel.inputs.ctypes.data
        self._lines = channel.lines.ctypes.data
        self._outputs = torch.from_numpy(channel.outputs)

    def put(self, number: int, order: Order, x: torch.Tensor, lines: torch.Tensor) -> None:
        """Give an order.

        Args:
            x: ``[num_rows, num_in]``, contiguous.
            lines: int32 ``[num_rows]``, contiguous.
        """
        # Torch would wake other threads for a copy, whose cores the helpers are on.
        ctypes.memmove(self._inputs, x.data_ptr(), x.nbytes)
        ctypes.memmove(self._lines, lines.data_ptr(), lines.nbytes)
        self._channel.ask(number, order)

    def result(self, num_rows: int, num_out: int) -> torch.Tensor:
        """What an order gave, once it is done: float32 ``[num_rows, num_out]``, in the channel's
        memory until the next one."""
        return self._outputs[: num_rows * num_out].view(num_rows, num_out)


def joined(parts: Sequence[torch.Tensor], whole: torch.Tensor) -> torch.Tensor:
    """Results of one order one under the other; a single one stays where it is.

    Args:
        parts: one or more, float32 ``[num_rows, num_out]`` each, contiguous.
        whole: float32, large enough: written.
    """
    if len(parts) == 1:
        return parts[0]
    num_rows = 0
    for part in parts:
        to = whole.data_ptr() + num_rows * part.shape[1] * part.itemsize
        ctypes.memmove(to, part.data_ptr(), part.nbytes)
        num_rows += len(part)
    width = parts[0].shape[1]
    return whole[: num_rows * width].view(num_rows, width)
