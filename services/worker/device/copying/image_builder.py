"""Makes adapters' images from their files, beside the steps: see `shared.adapters.image`."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Full, Queue

import numpy as np

from services.worker.core.effects import BuildImage
from services.worker.device.copying.copies import PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.mover import Loaded, Moved
from shared.arena import Bytes
from shared.wire.messages import AdapterRef

log = logging.getLogger(__name__)

BUILDS_MAX = 64  # that wait; of more, the last fail

ReadImage = Callable[[AdapterRef, Path], Bytes]
"""From an adapter and the folder of its files to uint8 [num_layers, num_blocks, page_bytes]."""


class ImageBuilder:
    """Owns a thread. `on_moved` is called from it, and by `submit` with what cannot be built."""

    def __init__(
        self, read: ReadImage, copier: PageCopier, gate: PageGate, on_moved: Callable[[Moved], None]
    ) -> None:
        self._read = read
        self._copier = copier
        self._gate = gate
        self._on_moved = on_moved
        self._builds: Queue[tuple[BuildImage, Path] | None] = Queue(BUILDS_MAX)
        self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
        self._thread.start()

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
        """Stop the thread, behind what it builds now."""
        while True:
            try:
                self._builds.put_nowait(None)
                break
            except Full:
                self._builds.get_nowait()
        self._thread.join()

    def _run(self) -> None:
        while (order := self._builds.get()) is not None:
            build, folder = order
            try:
                image = self._read(build.adapter, folder)
                data = image[tuple(np.array(build.places).T)]
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
