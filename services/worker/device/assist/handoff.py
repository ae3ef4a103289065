"""Rows into a helper's memory, and what it made of them out of it: the only copies there are."""

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch

from services.worker.device.assist.channel import Channel, Order, over
from services.worker.device.assist.device_stream import DeviceStream


class Handoff(Protocol):
    """The worker's side of one helper's orders."""

    def put(self, number: int, order: Order, x: torch.Tensor, lines: torch.Tensor) -> None:
        """Give an order; never waits.

        Args:
            x: ``[num_rows, num_in]``, contiguous.
            lines: int32 ``[num_rows]``, contiguous, in host memory.
        """
        ...


class HostHandoff:
    """For a model on the CPU."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inputs = channel.inputs.ctypes.data
        self._outputs = torch.from_numpy(channel.outputs)

    def put(self, number: int, order: Order, x: torch.Tensor, lines: torch.Tensor) -> None:
        # Torch would wake other threads for a copy, whose cores the helpers are on.
        ctypes.memmove(self._inputs, x.data_ptr(), x.nbytes)
        self._channel.write_order(number, order, lines.numpy())
        self._channel.ask(number)

    def result(self, num_rows: int, num_out: int) -> torch.Tensor:
        """What an order gave, once it is over: float32 ``[num_rows, num_out]``, in the channel's
        memory until the next one."""
        return self._outputs[: num_rows * num_out].view(num_rows, num_out)


class StreamHandoff:
    """For a model on a device whose host is ahead of it: the copies, the word that gives an order
    and the wait for the word that ends it are in the stream's order. So no order is begun before
    the one before it was taken, and one place for inputs and outputs is enough.

    Whether what was copied is what was asked for is known when the stream is past it: by
    `Channel.outcome`.
    """

    def __init__(self, channel: Channel, stream: DeviceStream) -> None:
        self._channel = channel
        self._stream = stream
        stream.register(channel.memory, self)
        self._inputs = torch.from_numpy(channel.inputs)
        self._outputs = torch.from_numpy(channel.outputs)

    def put(self, number: int, order: Order, x: torch.Tensor, lines: torch.Tensor) -> None:
        self._channel.write_order(number, order, lines.numpy())
        inputs = self._inputs[: x.nbytes].view(x.dtype).view(x.shape)
        self._stream.copy(inputs, x)
        self._stream.write(self._channel.asked_address, number)

    def take(self, number: int, result: torch.Tensor) -> None:
        """What an order gave, when it is over; never waits.

        Args:
            result: float32 ``[num_rows, num_out]``, contiguous, on the device: written.
        """
        self._stream.wait(self._channel.answered_address, over(number))
        self._stream.copy(result, self._outputs[: result.numel()].view(result.shape))


def joined(parts: Sequence[torch.Tensor], whole: torch.Tensor) -> torch.Tensor:
    """Results of one order one under the other; a single one stays where it is.

    Args:
        parts: one or more, float32 ``[num_rows, num_out]`` each, contiguous, in host memory.
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
