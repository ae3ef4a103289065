"""Writes the files of this host's adapters to the object store, and deletes them there."""

import asyncio
import logging

from services.kvstore.adapters.objects import AdapterObjects
from services.kvstore.adapters.store import AdapterStore
from services.kvstore.core.registry import Registry
from services.kvstore.tiers.objects.store import StoreFailed
from shared.runtime.tasks import wait_set

log = logging.getLogger(__name__)

RETRY_S = 30.0  # behind a failure, and to look for files that are gone here


class AdapterSaving:
    """Args:
    registry: says which adapters have names here, which are saved, and which are gone.
    """

    def __init__(self, objects: AdapterObjects, store: AdapterStore, registry: Registry) -> None:
        self._objects = objects
        self._store = store
        self._registry = registry
        self._saved: set[str] | None = None  # None: not known
        self._changed = asyncio.Event()

    def on_changed(self) -> None:
        """An adapter has come, or its files are gone."""
        self._changed.set()

    async def run(self) -> None:
        """Keep the object store in step, for ever."""
        while True:
            self._changed.clear()
            try:
                await self._bring_in_step()
            except StoreFailed as error:
                log.warning("adapters are not saved", extra={"error": str(error)})
                await asyncio.sleep(RETRY_S)
            else:
                await wait_set(self._changed, RETRY_S)

    async def _bring_in_step(self) -> None:
        if self._saved is None:
            self._saved = await asyncio.to_thread(self._objects.own)
        for adapter_hash in sorted(self._registry.named_files - self._saved):
            try:
                folder = self._store.folder_of(adapter_hash)
                await asyncio.to_thread(self._objects.save, adapter_hash, folder)
            except OSError as error:
                log.warning("an adapter's files", extra={"error": str(error)})
            else:
                self._saved.add(adapter_hash)
        for adapter_hash in [
            each for each in self._saved if not self._registry.has_files(each)
        ]:  # not before: turns of other hosts may need them as long as ours
            await asyncio.to_thread(self._objects.delete, adapter_hash)
            self._saved.discard(adapter_hash)
