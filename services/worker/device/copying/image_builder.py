"""Makes adapters' images from their files, beside the steps: see `shared.adapters.image`."""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, Full, Queue

import numpy as np

from services.worker.core.effects import BuildImage
from services.worker.device.copying.copies import PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.mover import Loaded, Moved
from shared.arena import Bytes
from shared.wire.messages import AdapterRef

log = logging.getLogger(__name__)

BUILDS_MAX = 64  # that wait; of more, the last fail
THREADS_MAX = 4
CORES_A_THREAD = 4  # the others are for steps

ReadImage = Callable[[AdapterRef, Path], Bytes]
"""From an adapter and the folder of its files to uint8 [num_layers, num_blocks, page_bytes]."""


class ImageBuilder:
    """Owns threads: most of a build is hashing, which needs no interpreter. `on_moved` is called
    from them, and by `submit` with what cannot be built.

    Args:
        num_threads: builds at once; 0: as the cores allow.
    """

    def __init__(
        self,
        read: ReadImage,
        copier: PageCopier,
        gate: PageGate,
        on_moved: Callable[[Moved], None],
        num_threads: int = 0,
    ) -> None:
        self._read = read
        self._copier = copier
        self._gate = gate
        self._on_moved = on_moved
        self._builds: Queue[tuple[BuildImage, Path] | None] = Queue(BUILDS_MAX)
        self._writing = threading.Lock()
        num_cores = len(os.sched_getaffinity(0))
        num_threads = num_threads or min(max(num_cores // CORES_A_THREAD, 1), THREADS_MAX)
        self._threads = [
            threading.Thread(target=self._run, name="adapters", daemon=True)
            for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, build: BuildImage, folder: str) -> None:
        """Make these pages; never waits.

        Args:
            folder: holds every adapter's files under its hash; empty: there is none.
        """
        self._gate.set_loading(build.pool_pages)
        if folder:
            try:
                self._builds.put_nowait((build, Path(folder) / build.adapter.adapter_hash))
                return
            except Full:
                log.warning("too many adapters are being built")
        self._settle([], build.pool_pages)

    def close(self) -> None:
        """Stop the threads, behind what they build now; nothing else is built."""
        with suppress(Empty):
            while True:
                self._builds.get_nowait()
        for _ in self._threads:
            self._builds.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (order := self._builds.get()) is not None:
            build, folder = order
            try:
                data = _pages_at(build.places, self._read(build.adapter, folder))
                with self._writing:
                    self._copier.write(build.pool_pages, data)
            except Exception as error:  # of one adapter's files: it costs that adapter's turns
                named = {"adapter": build.adapter.name, "adapter_hash": build.adapter.adapter_hash}
                log.warning("an adapter cannot be built", extra={**named, "error": str(error)})
                self._settle([], build.pool_pages)
            else:
                self._settle(build.pool_pages, [])

    def _settle(self, good: list[int], bad: list[int]) -> None:
        self._gate.settle(good, bad)
        self._on_moved(Loaded(good, bad))


def _pages_at(places: list[tuple[int, int]], image: Bytes) -> Bytes:
    """These pages of an image, in this order: all of it, as a rule, and then it is not copied."""
    num_layers, num_blocks, page_bytes = image.shape
    layers, blocks = np.array(places).T
    numbers = layers * num_blocks + blocks
    pages = image.reshape(num_layers * num_blocks, page_bytes)
    is_whole = np.array_equal(numbers, np.arange(len(pages)))
    found: Bytes = pages if is_whole else pages[numbers]
    return found
