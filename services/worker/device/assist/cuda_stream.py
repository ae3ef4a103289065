"""A CUDA stream, and words in it: the driver's stream memory operations, which take no part of the
device.

Source: CUDA driver API, "Stream Memory Operations".
"""

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shared.errors import SymphonyError

_CAN_USE_64_BITS = 122  # CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
_WRITE_BEHIND_BARRIER = 0  # what was written before is seen before
_WAIT_AT_LEAST = 0  # compared cyclically, as 64 bits
_MAPPED = 2  # cudaHostRegisterMapped


class CudaStream:
    """A `DeviceStream`.

    Raises:
        SymphonyError: this device or its driver has no such operations.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
            self._write = self._driver.cuStreamWriteValue64_v2
            self._wait = self._driver.cuStreamWaitValue64_v2
        except (OSError, AttributeError) as error:
            raise SymphonyError(f"no stream memory operations: {error}") from error
        can = ctypes.c_int()
        index = stream.device.index or 0
        _check(self._driver.cuDeviceGetAttribute(ctypes.byref(can), _CAN_USE_64_BITS, index))
        if not can.value:
            raise SymphonyError("no stream memory operations on words of 64 bits")

    def register(self, memory: npt.NDArray[np.uint8], holder: object) -> None:
        address = memory.ctypes.data
        with torch.cuda.device(self._stream.device):
            _check(int(torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, _MAPPED)))
        weakref.finalize(holder, _unregister, address)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def write(self, address: int, value: int) -> None:
        self._launch(self._write, address, value, _WRITE_BEHIND_BARRIER)

    def wait(self, address: int, value: int) -> None:
        self._launch(self._wait, address, value, _WAIT_AT_LEAST)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def between_ns(self, first: torch.cuda.Event, last: torch.cuda.Event) -> int:
        return int(first.elapsed_time(last) * 1e6)

    def _launch(self, operation: Any, address: int, value: int, flags: int) -> None:
        there = ctypes.c_uint64()  # where the device sees it
        at = ctypes.c_void_p(address)
        _check(self._driver.cuMemHostGetDevicePointer_v2(ctypes.byref(there), at, 0))
        stream = ctypes.c_void_p(self._stream.cuda_stream)
        _check(operation(stream, there, ctypes.c_uint64(value), ctypes.c_uint(flags)))


def _check(status: int) -> None:
    if status:
        raise SymphonyError(f"CUDA: stream memory operations: error {status}")


def _unregister(address: int) -> None:
    """The memory is not in use any more; it is unmapped next."""
    torch.cuda.cudart().cudaHostUnregister(address)
