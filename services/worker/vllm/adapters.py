"""Adapters of a model on vLLM: loaded before the first turn that runs on one is handed over."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from services.worker.core.adapters.adapters import PAUSES_NS
from services.worker.core.adapters.image import AdapterUse
from services.worker.core.adapters.stats import AdapterStats, AdapterStatus
from services.worker.core.turns.turn import Turn
from services.worker.core.vllm.adapters import AdapterBook, HeldAdapter
from services.worker.core.vllm.requests import AdapterFiles
from services.worker.core.vllm.status import adapter_status
from services.worker.vllm.protocol import AdapterUnavailable, VllmEngine
from shared.adapters.config import CONFIG_FILE
from shared.adapters.tensors import WEIGHTS_FILE
from shared.errors import SymphonyError
from shared.runtime.clock import Clock
from shared.runtime.tasks import Tasks
from shared.wire.messages import AdapterRef

log = logging.getLogger(__name__)


class VllmAdapters:
    """Args:
    folder: of this host, with the files of adapters under their hashes; empty: not known.
    bring: brings an adapter's files there from another host, if it can.
    """

    def __init__(
        self,
        engine: VllmEngine,
        clock: Clock,
        folder: Callable[[], str],
        bring: Callable[[str], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._folder = folder
        self._bring = bring
        self._book = AdapterBook(engine.adapter_room.resident_max)
        self._loads: dict[HeldAdapter, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()  # replaced each time: all that wait look again
        self._tasks = Tasks("an adapter failed")
        self.stats = AdapterStats()

    @asynccontextmanager
    async def held(
        self, use: AdapterUse, is_wanted: Callable[[], bool]
    ) -> AsyncIterator[AdapterFiles | None]:
        """A turn's adapter, in vLLM as long as this is open; None: it runs on the base, or is not
        wanted any more.

        Raises:
            SymphonyError: it cannot be loaded.
        """
        held = None if use.ref is None else await self._take(use.ref.adapter_hash, is_wanted)
        if held is None:
            yield None
            return
        use.start = "resident" if held.is_loaded else "waited"
        try:
            if not held.is_loaded:
                await asyncio.shield(self._load(held))
            yield AdapterFiles(held.name, held.number, self._path(held.name))
        finally:
            self._release(held)

    def expect(self, ref: AdapterRef) -> None:
        """A turn on it was announced."""
        if (held := self._book.expect(ref.adapter_hash)) is not None:
            self._tasks.spawn(self._load_ahead(held))

    def status(self, turns: Iterable[Turn]) -> AdapterStatus:
        """Of all turns that are here."""
        resident, num_failures = self._book.resident, self.stats.num_failures
        return adapter_status(turns, self._engine.adapter_room, resident, num_failures)

    def on_first_token(self, turn: Turn, now_ns: int) -> None:
        """A turn has one now."""
        if turn.adapter.ref is not None:
            took_ns = now_ns - turn.request.arrived_at_ns
            self.stats.on_first_token(turn.adapter.start, took_ns)

    async def _take(self, name: str, is_wanted: Callable[[], bool]) -> HeldAdapter | None:
        """It, with a place of its own; waits for one until turns on other adapters are over."""
        while is_wanted():
            held, leaves = self._book.take(name)
            if held is not None:
                if not held.is_loaded:
                    self._load(held, leaves)
                return held
            await self._changed.wait()
        return None

    def _release(self, held: HeldAdapter) -> None:
        self._book.release(held)
        self.wake()

    def wake(self) -> None:
        """Let turns that wait for a place look again: one is free, or they are not wanted."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _load(self, held: HeldAdapter, leaves: HeldAdapter | None = None) -> asyncio.Task[None]:
        """Its load, whichever turn began it, behind the removal of what has to leave."""
        if (task := self._loads.get(held)) is None:
            task = self._loads[held] = asyncio.create_task(self._load_files(held, leaves))
            task.add_done_callback(lambda _: self._loads.pop(held, None))
        return task

    async def _load_ahead(self, held: HeldAdapter) -> None:
        try:
            await self._load(held)
        except SymphonyError as flaw:
            log.warning("adapter not prefetched", extra={"reason": flaw.message})
        finally:
            self._release(held)

    async def _load_files(self, held: HeldAdapter, leaves: HeldAdapter | None) -> None:
        since_ns = self._clock.now_ns()
        try:
            if leaves is not None:
                await self._engine.remove_adapter(leaves.number)
            await self._wait_for_files(held.name)
            await self._engine.add_adapter(
                AdapterFiles(held.name, held.number, self._path(held.name))
            )
        except SymphonyError:
            self.stats.num_failures += 1
            self._book.drop(held)
            self.wake()
            raise
        held.is_loaded = True
        self.stats.on_loaded("files", self._clock.now_ns() - since_ns)

    async def _wait_for_files(self, name: str) -> None:
        """A kvstore that is only starting knows no files yet."""
        for pause_ns in (*PAUSES_NS, None):
            await self._bring(name)
            path = self._path(name)
            if bool(path) and await asyncio.to_thread(_has_files, path):
                return
            if pause_ns is not None:
                await asyncio.sleep(pause_ns / 1e9)
        raise AdapterUnavailable(f"adapter: its files are not on this host: {name}")

    def _path(self, name: str) -> str:
        folder = self._folder()
        return str(Path(folder) / name) if folder else ""


def _has_files(path: str) -> bool:
    return all((Path(path) / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE))
