"""What must hold of a kvstore's core when something happens to it."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from loadtest.sim.services.checks import held_blocks
from services.kvstore.core import Commit, Effect, FetchedPages, KvCore, LoadOutcome, PageReads
from services.kvstore.core.tiers.arena_block import NO_PAGE
from shared.errors import InvalidRequest, NotFound
from shared.ids import HostId

OVERTAKING = {"delay", "freeze"}  # faults by which messages overtake each other


class KvWatch:
    """Sees what comes to a core, and checks what it makes of it.

    Args:
        fault_kinds: that are on in this world.

    Attributes:
        unread: layers of blocks, by id, whose read failed.
        has_ticked: since that was set to False.
    """

    def __init__(self, core: KvCore, fault_kinds: frozenset[str]) -> None:
        self._core = core
        self._fault_kinds = fault_kinds
        self.unread: set[tuple[int, int]] = set()
        self.has_ticked = False
        for name, watched in (
            ("on_tick", self._on_tick),
            ("on_loaded", self._on_loaded),
            ("on_fetched", self._on_fetched),
            ("on_commit", self._on_commit),
        ):
            setattr(core, name, _around(getattr(core, name), watched))

    def _on_tick(self, on_tick: Callable[[int], list[Effect]], now_ns: int) -> list[Effect]:
        self.has_ticked = True
        return on_tick(now_ns)

    def _on_loaded(
        self,
        on_loaded: Callable[..., list[Effect]],
        results: list[tuple[PageReads, list[LoadOutcome]]],
        *rest: int,
    ) -> list[Effect]:
        alive = {block.block_id for block in held_blocks(self._core) if block.is_alive}
        effects = on_loaded(results, *rest)
        for reads, outcomes in results:
            for block_id, key, outcome in zip(reads.block_ids, reads.keys, outcomes, strict=True):
                if outcome is LoadOutcome.FAILED:
                    self.unread.add((block_id, reads.layer))
                is_bad = outcome in (LoadOutcome.CORRUPT, LoadOutcome.MISSING)
                is_kept = is_bad and block_id in alive and key in self._core.disk
                assert not is_kept, "a block that cannot be read is still offered"
        return effects

    def _on_fetched(
        self,
        on_fetched: Callable[..., list[Effect]],
        host_id: HostId,
        pages: list[FetchedPages],
        *rest: int,
        **options: bool,
    ) -> list[Effect]:
        waited = [
            (block, layer)
            for block in held_blocks(self._core)
            if block.source.host_id == host_id
            for layer in block.queued
        ]
        effects = on_fetched(host_id, pages, *rest, **options)
        self.unread |= {  # abandoned, though a ticket is for them
            (block.block_id, layer) for block, layer in waited if block.pages[layer] == NO_PAGE
        }
        for each in pages:
            for block_id, outcome in zip(each.reads.block_ids, each.outcomes, strict=True):
                if outcome is not LoadOutcome.READY:
                    self.unread.add((block_id, each.reads.layer))
        return effects

    def _on_commit(
        self,
        on_commit: Callable[[Commit, int], tuple[int, list[Effect]]],
        event: Commit,
        now_ns: int,
    ) -> tuple[int, list[Effect]]:
        try:
            return on_commit(event, now_ns)
        except InvalidRequest as error:
            # Of an earlier incarnation; or overtaken by a renewal that names them no more.
            is_late = isinstance(error, NotFound) or OVERTAKING & self._fault_kinds
            assert is_late, f"{event.worker_id} commits what is not its own"
            raise


def _around(event: Callable[..., Any], watched: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(event)
    def call(*args: Any, **kwargs: Any) -> Any:
        return watched(event, *args, **kwargs)

    return call
