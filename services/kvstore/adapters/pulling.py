"""Pulls an adapter's files from another host into a new folder."""

import asyncio
from pathlib import Path

import numpy as np

from services.kvstore.adapters.parts import PART_BYTES, key_of, num_parts, places
from services.kvstore.adapters.store import IncomingAdapter
from services.kvstore.core import LoadOutcome, PageReads
from services.kvstore.peers.fetches import PeerRead
from services.kvstore.peers.transport import PeerLink, PeerTransport
from shared.arena import ArenaView
from shared.errors import PeerUnavailable
from shared.runtime.urls import split_address
from shared.wire.messages import AdapterFound

WINDOW_PARTS = 4  # asked for at once
WINDOW_S = 5.0  # for them: a host that is slower counts as gone


class PeerPull:
    """Pulls from another host, as KV is.

    Raises, when made:
        PeerUnavailable: that host's address is none.
    """

    def __init__(self, transport: PeerTransport, found: AdapterFound) -> None:
        self._found = found
        self._loop = asyncio.get_running_loop()
        words = np.zeros(WINDOW_PARTS, np.uint64)
        pages = np.zeros((WINDOW_PARTS, PART_BYTES), np.uint8)
        self._arena = ArenaView(Path(), words, pages)
        self._reported: asyncio.Future[list[PeerRead]] = self._loop.create_future()
        try:
            address = split_address(found.address)
        except ValueError as error:
            raise PeerUnavailable(f"host {found.host_id}: {error}") from None
        self._link: PeerLink = transport.connect(
            found.host_id, address, self._report, {PART_BYTES: self._arena}
        )

    async def into(self, adapter_hash: str, incoming: IncomingAdapter) -> None:
        """Raises:
        PeerUnavailable: it did not send all of it.
        OSError: there is no room.
        """
        try:
            num = num_parts(self._found.files)
            for first in range(0, num, WINDOW_PARTS):
                numbers = range(first, min(first + WINDOW_PARTS, num))
                await self._fetch(adapter_hash, numbers)
                await asyncio.to_thread(self._append, incoming, numbers)
        finally:
            await asyncio.shield(asyncio.to_thread(self._link.stop))

    async def _fetch(self, adapter_hash: str, numbers: range) -> None:
        key = key_of(adapter_hash)
        reads = [
            PageReads(number, PART_BYTES, [0], [key], [page], [number])
            for page, number in enumerate(numbers)
        ]
        self._reported = self._loop.create_future()
        self._link.submit(reads, WINDOW_S)
        results = await self._reported
        outcomes = {outcome for each in results for outcome in each.outcomes}
        if outcomes != {LoadOutcome.READY}:
            why = "it does not have them any more" if LoadOutcome.MISSING in outcomes else (
                "it sent other bytes" if LoadOutcome.CORRUPT in outcomes else "it is gone or slow"
            )  # fmt: skip
            raise PeerUnavailable(f"host {self._found.host_id} does not give its files: {why}")

    def _append(self, incoming: IncomingAdapter, numbers: range) -> None:
        """In a thread."""
        data = self._arena.pages[: len(numbers)].reshape(-1).data
        at = 0
        start = numbers.start * PART_BYTES
        for name, _, length in places(self._found.files, start, len(data)):
            incoming.append(name, data[at : at + length])
            at += length

    def _report(self, results: list[PeerRead], seconds: float) -> None:
        """In any thread."""
        del seconds
        self._loop.call_soon_threadsafe(self._on_report, results)

    def _on_report(self, results: list[PeerRead]) -> None:
        if not self._reported.done():
            self._reported.set_result(results)
