"""What the kvstore's decisions cost, for `symphony bench core`."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from loadtest.bench.core.worker import page_figures
from services.kvstore.core import (
    Commit,
    Effect,
    KvCore,
    Limits,
    LoadOutcome,
    NewBlock,
    Open,
    ReadPages,
    Release,
    Stage,
    WriteBlocks,
    WriteOutcome,
)
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, root_key
from shared.ids import WorkerId

ROOT = root_key("bench", "bench")
WORKER, INCARNATION, FINGERPRINT = WorkerId("bench"), "i", "f"
PAGE_BYTES = 1 << 16
ROUNDS = 5

T = TypeVar("T")


def measure(context: int, num_layers: int) -> dict[str, dict[str, float]]:
    """The least milliseconds in `ROUNDS` of each kind of event, and pages a second."""
    num_blocks = (context - 1) // BLOCK_TOKENS
    rounds = [_Round(num_blocks, num_layers) for _ in range(ROUNDS)]
    for each in rounds:
        each.run()
    num_pages = num_blocks * num_layers
    return {
        f"kvstore_{name}": page_figures(min(each.took_s[name] for each in rounds), num_pages)
        for name in rounds[0].took_s
    }


class _Round:
    """A session is committed, staged, displaced, and comes up from disk again.

    Attributes:
        took_s: seconds of each kind of event.
    """

    def __init__(self, num_blocks: int, num_layers: int) -> None:
        self._num_layers = num_layers
        self._num_pages = num_blocks * num_layers
        self._tokens = [1] * num_blocks * BLOCK_TOKENS
        self._keys = chain_keys(ROOT, self._tokens, BLOCK_TOKENS)
        limits = Limits(
            disk_bytes_max=1 << 50, expiry_ns=1 << 60, noted_ns=1 << 60, lease_share=1.0
        )
        self._core = KvCore(limits)
        self._core.on_arena(PAGE_BYTES, self._num_pages)
        self._core.on_open(Open(WORKER, INCARNATION, FINGERPRINT, num_layers, PAGE_BYTES), 0)
        self.took_s: dict[str, float] = {}

    def run(self) -> None:
        core = self._core
        pages, _ = self._timed("lease", lambda: self._lease(1))
        commit = self._commit(pages)
        _, effects = self._timed("commit", lambda: core.on_commit(commit, 0))
        block_ids = [
            write.block_id
            for effect in effects
            if isinstance(effect, WriteBlocks)
            for write in effect.writes
        ]
        num_bytes = self._num_layers * PAGE_BYTES
        written = [(block_id, WriteOutcome.STORED, num_bytes) for block_id in block_ids]
        self._timed("written", lambda: core.on_written(written, 0))
        stage = Stage(WORKER, INCARNATION, self._num_layers, PAGE_BYTES, self._keys)
        pinned, _ = self._timed("stage_resident", lambda: core.on_stage(stage, 0))
        release = Release(WORKER, INCARNATION, pinned.ticket)
        self._timed("release", lambda: core.on_release(release, 0))
        pages, _ = self._timed("lease_that_evicts", lambda: self._lease(2))
        back = Release(WORKER, INCARNATION, 0, PAGE_BYTES, pages, last_lease=2)
        self._timed("give_back", lambda: core.on_release(back, 0))
        pinned, effects = self._timed("stage_from_disk", lambda: core.on_stage(stage, 0))
        assert pinned.num_blocks == len(self._keys), "the arena holds it all"
        self._load(effects)

    def _lease(self, number: int) -> tuple[list[int], list[Effect]]:
        return self._core.on_lease(WORKER, INCARNATION, PAGE_BYTES, self._num_pages, number, 0)

    def _commit(self, pages: list[int]) -> Commit:
        parents: list[BlockKey] = [ROOT, *self._keys[:-1]]
        blocks = [
            NewBlock(
                key=key,
                parent=parent,
                tokens=self._tokens[:BLOCK_TOKENS],
                pages=pages[at * self._num_layers : (at + 1) * self._num_layers],
                checksums=[0] * self._num_layers,
            )
            for at, (key, parent) in enumerate(zip(self._keys, parents, strict=True))
        ]
        return Commit(WORKER, INCARNATION, FINGERPRINT, PAGE_BYTES, blocks, last_lease=1)

    def _load(self, effects: list[Effect]) -> None:
        """The loader answers until it is asked no more; all that the core took to hear of it."""
        total_s = 0.0
        while batches := [effect.reads for effect in effects if isinstance(effect, ReadPages)]:
            effects = []
            for batch in batches:
                results = [(run, [LoadOutcome.READY] * len(run.pages)) for run in batch]
                effects += self._timed("loaded", partial(self._core.on_loaded, results, 0, 0))
                total_s += self.took_s["loaded"]
        self.took_s["loaded"] = total_s

    def _timed(self, name: str, call: Callable[[], T]) -> T:
        started_s = time.perf_counter()
        result = call()
        self.took_s[name] = time.perf_counter() - started_s
        return result
