"""Streams that stand in for a CUDA device's: one that runs what is launched at once, and one that
the host is ahead of."""

import ctypes
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

LONG_S = 300.0


class InstantStream:
    """A launch returns when what it launched is over."""

    def __init__(self) -> None:
        self.registered: list[npt.NDArray[np.uint8]] = []

    def register(self, memory: npt.NDArray[np.uint8], holder: object) -> None:
        self.registered.append(memory)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._launch(lambda: target.copy_(source))

    def write(self, address: int, value: int) -> None:
        self._launch(lambda: setattr(self._word(address), "value", value))

    def wait(self, address: int, value: int) -> None:
        word = self._word(address)

        def waited() -> None:
            ends_at = time.monotonic() + LONG_S
            while word.value < value:
                assert time.monotonic() < ends_at, "a stream that waits for ever"
                time.sleep(20e-6)

        self._launch(waited)

    def mark(self) -> Any:
        return time.monotonic_ns()

    def between_ns(self, first: Any, last: Any) -> int:
        return int(last - first)

    def _launch(self, operation: Callable[[], object]) -> None:
        operation()

    def _word(self, address: int) -> ctypes.c_uint64:
        assert any(
            0 <= address - memory.ctypes.data < memory.nbytes for memory in self.registered
        ), "of memory that the device does not know"
        return ctypes.c_uint64.from_address(address)


class LateStream(InstantStream):
    """What is launched runs in a thread, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self._launched: Queue[Callable[[], object]] = Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def synchronize(self) -> None:
        """Return when all that was launched is over."""
        is_over = threading.Event()
        self._launch(is_over.set)
        assert is_over.wait(2 * LONG_S)

    def mark(self) -> Any:
        times: list[int] = []
        self._launch(lambda: times.append(time.monotonic_ns()))
        return times

    def between_ns(self, first: Any, last: Any) -> int:
        return int(last[0] - first[0])

    def _launch(self, operation: Callable[[], object]) -> None:
        self._launched.put(operation)

    def _run(self) -> None:
        while True:
            self._launched.get()()
