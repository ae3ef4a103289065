"""The kvstore's decisions: leases, commits, stages, evictions, in every tier of one host.

A block is stored once per host. Its life: leased pages that a worker fills, then a commit (the
arena holds the only copy, which cannot be evicted until it is written or refused), then on disk,
too. Arena and disk evict independently, so a block may outlive its copy in the other; it is deleted
and expires in both. Stages bring pages into the arena again, and pin them.
"""

from dataclasses import dataclass

from services.kvstore.core.base.effects import (
    Effect,
    LoadOutcome,
    PageReads,
    ResetDisk,
    SaveOutcome,
    WriteOutcome,
)
from services.kvstore.core.base.runs import Run
from services.kvstore.core.base.store_limits import Limits
from services.kvstore.core.disk.found_blocks import FoundBlocks
from services.kvstore.core.exchange import Exchange
from services.kvstore.core.parts import make_parts
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.backlog import TierSpeed
from services.kvstore.core.tiers.locations import Locations
from services.kvstore.core.uses import Uses
from services.kvstore.core.worker_calls import WorkerCalls
from shared.blocks import BlockKey
from shared.ids import HostId, WorkerId
from shared.owners import OwnerKey

OWN_HOST = HostId("")  # of a core that has no peers


@dataclass(frozen=True, slots=True)
class Usage:
    """How full the tiers are. Arena figures are of all arenas together."""

    arena_pages: int
    arena_pages_used: int
    arena_bytes: int
    arena_bytes_used: int
    arena_blocks_pinned: int
    num_pages_evicted: int  # from the arenas, since the start
    disk_blocks: int
    disk_bytes: int
    disk_bytes_max: int
    objects_bytes: int
    num_sessions_unsaved: int


class KvCore:
    """See the module. Events return effects; those that answer a caller return the answer first.

    Calls of workers are handled by `WorkerCalls`, other hosts and the object store by `Exchange`;
    their events are this class's as well.

    Args:
        limits: sizes and ages.
        first_ticket: tickets count up from here, so that those of an earlier life match none.
        host_id: our own.

    Attributes:
        arenas: by page size in bytes.
        disk, arena_only: blocks on disk, and those that only an arena has: no block is in both.
        locations: what Redis is to hold of sessions on this host.
        objects: the object store.
        peers: what is known of other hosts.
        exchange: the part that serves `peers` and `tiers.objects`.
    """

    def __init__(self, limits: Limits, first_ticket: int = 1, host_id: HostId = OWN_HOST) -> None:
        parts = make_parts(limits, first_ticket, host_id)
        self._limits = limits
        self.arenas = parts.arenas
        self.disk, self.arena_only = parts.blocks.disk, parts.blocks.arena_only
        self._here = parts.blocks
        self.locations = Locations(self._here)
        self._tiers = parts.tiers
        self.workers = parts.workers
        self.counts = parts.counts
        self.objects = parts.objects
        self._loads = parts.loads
        self._shrinking, self._steps = parts.shrinking, parts.steps
        self.peers, self.finding = parts.peers, parts.finding
        self._deleted = parts.deleted
        self._storing = parts.storing
        self._returns = parts.returns
        self._writes = parts.storing.writes
        self._disk_life = 1
        self._uses = Uses(parts)
        calls = WorkerCalls(parts, self._uses)
        self.on_open = calls.on_open
        self.on_worker_gone = calls.on_worker_gone
        self.on_lease = calls.on_lease
        self.on_renew = calls.on_renew
        self.on_release = calls.on_release
        self.on_commit = calls.on_commit
        self.on_stage = calls.on_stage
        exchange = self.exchange = Exchange(parts, host_id)
        self.on_fetched = exchange.on_fetched
        self.what_objects_may_give = exchange.what_objects_may_give
        self.offer_of_objects = exchange.offer_of_objects
        self.on_locate = exchange.on_locate
        self.whom_to_ask = exchange.whom_to_ask
        self.find_written = exchange.find_written

    def on_disk_found(
        self, found: FoundBlocks, now_ns: int, *, was_reset: bool = False
    ) -> list[Effect]:
        """What the disk held at the start.

        Args:
            was_reset: the database was damaged or outdated, and is a new one.
        """
        self.counts.num_disks_anew += was_reset
        self.disk.find(found)
        self.locations.on_found()
        return self.on_tick(now_ns)

    def on_arena(self, page_bytes: int, num_pages: int) -> None:
        """An arena was made; every word in it says FREE."""
        assert page_bytes not in self.arenas, "one arena a page size"
        arena = self.arenas[page_bytes] = ArenaTier(
            num_pages,
            page_bytes,
            self._limits.eviction,
            self._tiers.is_kept_below,
            self._returns,
        )
        arena.on_gone = self.arena_only.remove

    def on_arena_grown(self, page_bytes: int, num_pages: int) -> None:
        """So many pages of an arena can be used now; ignored before `on_arena`, and if the arena
        is as large.
        """
        arena = self.arenas.get(page_bytes)
        if arena is not None and num_pages > arena.num_pages:
            arena.grow(num_pages)

    def has_arena(self, page_bytes: int) -> bool:
        """Whether there is an arena of such pages."""
        return page_bytes in self.arenas

    def incarnation_of(self, worker_id: WorkerId) -> str | None:
        """Which incarnation of a worker is open; None: none is."""
        worker = self.workers.find(worker_id)
        return None if worker is None else worker.incarnation

    def on_loaded(
        self, results: list[tuple[PageReads, list[LoadOutcome]]], duration_ns: int, now_ns: int
    ) -> list[Effect]:
        """The loader finished a batch, page by page, in `duration_ns`, and published its words. A
        block with a page that is gone or damaged is deleted everywhere; a read that failed fails
        this load only.
        """
        effects: list[Effect] = []
        self._loads.end_batch(self._loads.disk, results, duration_ns, effects)
        self._loads.send(effects)
        self._storing.send(now_ns, effects)
        return effects

    def on_written(self, results: list[tuple[int, WriteOutcome, int]], now_ns: int) -> list[Effect]:
        """The writer finished blocks: (block id, outcome, bytes on disk). What was not taken is
        tried once more, on a full disk after making room; then the block stays in memory alone.
        """
        effects: list[Effect] = []
        self._storing.on_written(results, now_ns, effects)
        return effects

    def on_saved(
        self,
        run: Run,
        outcome: SaveOutcome,
        missing: BlockKey | None,
        now_ns: int,
        stored_bytes: int | None = None,
    ) -> list[Effect]:
        """A run was written to the object store, or was not.

        Args:
            missing: a block of it that the disk does not have; None: none is known.
            stored_bytes: of the object, if that is known.
        """
        effects: list[Effect] = []
        if missing is not None:
            self._tiers.lose_copy(missing, now_ns, effects)
        return effects + self.objects.on_saved(run, outcome, now_ns, stored_bytes)

    def on_objects_listed(self, now_ns: int) -> list[Effect]:
        """All runs that were there were listed: from now on runs are written and dropped."""
        return self.objects.on_all_listed(now_ns)

    @property
    def object_locations(self) -> Locations:
        """What Redis is to hold of sessions that this host wrote to the object store."""
        return self.objects.locations

    def on_disk_damaged(self, life: int, now_ns: int) -> list[Effect]:
        """The database of this life (the first is 1) cannot be used any more and is replaced by an
        empty one. What the arena has whole stays there; reports on an earlier life are ignored.
        """
        effects: list[Effect] = []
        if life != self._disk_life:
            return effects
        self._disk_life += 1
        self.counts.num_disks_anew += 1
        effects.append(ResetDisk())
        self._tiers.lose_disk(effects)
        self.locations.on_lost()
        return effects

    def on_delete(
        self, owner: OwnerKey, keys: list[BlockKey], now_ns: int
    ) -> tuple[int, list[Effect]]:
        """Forget these blocks and all that `owner` made, in every tier. Pages that are being read
        go when they are released.
        """
        effects: list[Effect] = []
        self._deleted.add(owner, now_ns)
        gone = dict.fromkeys([*keys, *self._tiers.owned(owner)])
        num_blocks = sum(self._tiers.forget(key, effects) for key in gone)
        self.objects.on_deleted(owner, effects)
        return num_blocks, effects

    def on_tick(self, now_ns: int) -> list[Effect]:
        """Now and then: drop what is expired or too much."""
        effects: list[Effect] = []
        for ticket in self.workers.take_expired(now_ns - self._limits.ticket_ns):
            self._tiers.unpin(ticket, now_ns, effects)
            self.counts.num_tickets_expired += 1
        self._deleted.expire(now_ns)
        self._shrinking.step(now_ns, effects)
        self._storing.send(now_ns, effects)
        return effects + self.objects.on_tick(now_ns)

    def on_do_more(self, now_ns: int) -> list[Effect]:
        """The shell has handled what was waiting when `DoMore` was emitted."""
        effects: list[Effect] = []
        self._steps.begin()
        self._shrinking.step(now_ns, effects)
        self._uses.step(now_ns, effects)
        return effects

    def on_stop(self) -> list[Effect]:
        """The service stops: write all that waits to be written."""
        effects: list[Effect] = []
        self._storing.queue.flush(self._writes.is_wanted, effects)
        return effects

    @property
    def usage(self) -> Usage:
        """How full the tiers are now."""
        arenas = self.arenas.values()
        used = [arena.num_pages - arena.num_free for arena in arenas]
        return Usage(
            arena_pages=sum(arena.num_pages for arena in arenas),
            arena_pages_used=sum(used),
            arena_bytes=sum(arena.num_pages * arena.page_bytes for arena in arenas),
            arena_bytes_used=sum(
                num * arena.page_bytes for num, arena in zip(used, arenas, strict=True)
            ),
            arena_blocks_pinned=sum(arena.num_pinned for arena in arenas),
            num_pages_evicted=sum(arena.num_evicted for arena in arenas),
            disk_blocks=len(self.disk),
            disk_bytes=self.disk.num_bytes,
            disk_bytes_max=self.disk.capacity_bytes,
            objects_bytes=self.objects.tier.num_bytes,
            num_sessions_unsaved=self.objects.num_sessions_unsaved,
        )

    @property
    def is_loading(self) -> bool:
        """Whether any page is being loaded into an arena."""
        return self._loads.is_loading

    @property
    def num_bytes_waiting(self) -> int:
        """Bytes that were requested and are not loaded yet."""
        return self._loads.num_bytes_waiting

    @property
    def disk_speed(self) -> TierSpeed:
        """How fast the disk was lately."""
        return self._loads.disk.speed

    @property
    def peer_speeds(self) -> dict[HostId, float]:
        """How fast other hosts were lately, bytes/s, as far as they were measured."""
        return self._loads.peer_speeds

    @property
    def num_writing(self) -> int:
        """Blocks that are with the writer."""
        return len(self._writes)
