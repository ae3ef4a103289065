"""The kvstore's decisions: leases, commits, stages, evictions, in every tier of one host.

A block is stored once per host. Its life: leased pages that a worker fills, then a commit (the
arena holds the only copy, which cannot be evicted until it is written or refused), then on disk,
too. Arena and disk evict each for itself, so it may outlive its copy in the other; it is deleted
and expires in both. Pages come up again by stages, which pin.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, count, takewhile

from services.kvstore.core.base.effects import (
    BeginDiskAnew,
    DiskWrite,
    Effect,
    LoadOutcome,
    PageReads,
    SaveOutcome,
    TouchBlocks,
    WriteOutcome,
)
from services.kvstore.core.base.events import Commit, Offer, Open, Pinned, Release, Renew, Stage
from services.kvstore.core.base.limits import Counts, Limits
from services.kvstore.core.base.runs import Place, Run
from services.kvstore.core.checks import check_commit
from services.kvstore.core.disk.disk_tier import DiskTier
from services.kvstore.core.disk.found_blocks import FoundBlocks
from services.kvstore.core.loading.finding import Finding
from services.kvstore.core.loading.loads import Loads
from services.kvstore.core.loading.peers import Deleted, Peers
from services.kvstore.core.loading.staging import blocks_below, fill_prefix, pin_prefix
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.backlog import TierSpeed
from services.kvstore.core.tiers.host_blocks import HostBlocks
from services.kvstore.core.tiers.locations import Locations
from services.kvstore.core.tiers.memory_tier import MemoryTier
from services.kvstore.core.tiers.shrinking import Shrinking
from services.kvstore.core.tiers.tiers import Tiers
from services.kvstore.core.tiers.workers import Ticket, Workers
from services.kvstore.core.tiers.writes import new_block
from services.kvstore.core.writing.arrivals import Arrivals, FetchedPages
from services.kvstore.core.writing.objects import Objects
from services.kvstore.core.writing.storing import Storing
from services.kvstore.core.writing.write_queue import WriteQueue
from shared.blocks import BlockKey
from shared.errors import InvalidRequest, NotFound
from shared.expiry import NS_PER_S
from shared.ids import HostId, WorkerId
from shared.locations import OBJECTS, worth_keeping
from shared.owners import OwnerKey

OWN_HOST = HostId("")  # of a core that has no peers
USED_MAX = 256  # sequences that one renewal may name


class KvCore:
    """See the module. Events return effects; those that answer a caller return the answer first.

    Args:
        limits: sizes and ages.
        first_ticket: tickets count up from here, so that those of an earlier life match none.
        host_id: our own.

    Attributes:
        arenas: by page size in bytes.
        disk, memory: blocks on disk, and those that only an arena has: no block is in both.
        locations: what Redis is told of sessions.
        objects: the object store.
        peers: what is known of other hosts.
    """

    def __init__(self, limits: Limits, first_ticket: int = 1, host_id: HostId = OWN_HOST) -> None:
        self._limits = limits
        self.arenas: dict[int, ArenaTier] = {}
        self.disk = DiskTier(limits.disk_bytes_max, limits.expiry_ns)
        self.memory = MemoryTier(limits.expiry_ns)
        self._here = HostBlocks(self.disk, self.memory)
        self.locations = Locations(self._here)
        self._tiers = Tiers(self.arenas, self._here)
        self.workers = Workers(first_ticket)
        self.counts = Counts()
        self.objects = Objects(limits, self.disk, host_id, self.counts)
        self._loads = Loads(limits, self._tiers, self.arenas, self.counts)
        self._shrinking = Shrinking(limits, self._tiers, self.counts)
        self.peers = Peers(host_id)
        self.finding = Finding(host_id)
        self._deleted = Deleted()
        self._block_ids = count(1)
        write_queue = WriteQueue(limits.disk_bytes_per_s, limits.write_wait_ns, limits.copy_rest_ns)
        self._storing = Storing(
            self._tiers, self._loads, self.objects, self._shrinking, write_queue, self.counts
        )
        self._writes = self._storing.writes
        self._arrivals = Arrivals(
            self._here, self._loads.disk, self._writes, write_queue, self._deleted
        )
        self._disk_life = 1

    def on_disk_found(self, found: FoundBlocks, now_ns: int) -> list[Effect]:
        """What the disk held at the start."""
        self.disk.find(found)
        self.locations.on_found()
        return self.on_tick(now_ns)

    def on_arena(self, page_bytes: int, num_pages: int) -> None:
        """An arena was made; every word in it says FREE."""
        assert page_bytes not in self.arenas, "one arena a page size"
        arena = self.arenas[page_bytes] = ArenaTier(
            num_pages, page_bytes, self._limits.eviction, self._tiers.is_kept_below
        )
        arena.on_gone = self.memory.remove

    def on_arena_grown(self, page_bytes: int, num_pages: int) -> None:
        """So many pages of an arena can be used now."""
        self.arenas[page_bytes].grow(num_pages)

    def on_open(self, event: Open, now_ns: int) -> list[Effect]:
        """A worker introduces itself, which gives back what an earlier incarnation of it held. The
        same word heard twice changes nothing: by now it may hold pages.

        Raises:
            NotFound: a later incarnation has opened since: this one is over.
        """
        if self.workers.is_retired(event.worker_id, event.incarnation):
            raise NotFound(
                f"{event.worker_id} has opened again since", "incarnation", "unknown_worker"
            )
        effects: list[Effect] = []
        old = self.workers.find(event.worker_id)
        if old is not None and old.incarnation != event.incarnation:
            effects += self.on_worker_gone(old.worker_id, old.incarnation, now_ns)
        self.workers.open(event)
        return effects

    def on_worker_gone(self, worker_id: WorkerId, incarnation: str, now_ns: int) -> list[Effect]:
        """A worker's process ended: reclaim its leases and tickets."""
        effects: list[Effect] = []
        if (worker := self.workers.close(worker_id, incarnation)) is not None:
            for ticket in worker.tickets.values():
                self._tiers.unpin(ticket, now_ns, effects)
            for page_bytes, pages in worker.leased.items():
                self.arenas[page_bytes].give(sorted(pages), effects)
        return effects

    def on_lease(
        self,
        worker_id: WorkerId,
        incarnation: str,
        page_bytes: int,
        num_pages: int,
        number: int,
        now_ns: int,
    ) -> tuple[list[int], list[Effect]]:
        """Pages to write new KV into, as many as there are, at most `num_pages`. `number` is that
        of the worker's question.

        Raises:
            NotFound: `unknown_worker`.
            InvalidRequest: no arena of such pages.
        """
        worker = self.workers.get(worker_id, incarnation)
        effects: list[Effect] = []
        pages = self._arena(page_bytes).take(
            max(num_pages, 0), self._tiers.has_copy, now_ns, effects
        )
        worker.lease(page_bytes, pages, number, now_ns)
        return pages, effects

    def on_renew(self, event: Renew, now_ns: int) -> list[Effect]:
        """A worker still holds these tickets and leased pages; those that are gone are ignored.
        Pages that were leased to it long ago and that it does not name go back.

        Raises:
            NotFound: `unknown_worker`.
        """
        worker = self.workers.get(event.worker_id, event.incarnation)
        worker.renew(event, now_ns)
        effects: list[Effect] = []
        if pages := worker.take_forgotten(event, now_ns - self._limits.ticket_ns):
            self.arenas[event.page_bytes].give(pages, effects)
        if event.used and event.page_bytes in self.arenas:
            used = event.used[:USED_MAX]
            found = self._tiers.use(used, event.page_bytes, now_ns, effects)
            effects += self._use(found, now_ns)
            if found and (last := self._here.get(found[0])) is not None:
                self.objects.on_used(last.owner, now_ns)
            self._write_again(event.page_bytes, reversed(found), now_ns)
        return effects

    def on_release(self, event: Release, now_ns: int) -> list[Effect]:
        """Unpin, perhaps a part, and give back. What the worker does not hold is ignored: it was
        reclaimed, and may have been leased to it again."""
        worker = self.workers.find(event.worker_id)
        effects: list[Effect] = []
        if worker is None or worker.incarnation != event.incarnation:
            return effects
        if worker.is_repeated(event.seq):
            return effects
        if (ticket := worker.tickets.get(event.ticket)) is not None:
            # Pages come in any order, and so do blocks; here they stand in theirs.
            self._arrivals.keep(self.arenas[ticket.page_bytes], ticket.blocks, now_ns)
            if 0 < event.num_kept < len(ticket.blocks):
                self._tiers.unpin(ticket.split(event.num_kept), now_ns, effects)
            elif not event.num_kept:
                self._tiers.unpin(worker.tickets.pop(event.ticket), now_ns, effects)
        if pages := worker.meant(event.page_bytes, dict.fromkeys(event.pages), event.heard):
            worker.end_leases(event.page_bytes, pages)
            self.arenas[event.page_bytes].give(pages, effects)
        self._storing.send(now_ns, effects)
        return effects

    def on_commit(self, event: Commit, now_ns: int) -> tuple[int, list[Effect]]:
        """Take new blocks over; a block that is here already gives its pages back. Heard again, it
        changes nothing.

        Raises:
            NotFound: `unknown_worker`.
            InvalidRequest: of another shape than announced, or pages that are not leased; nothing
                was taken over.
        """
        worker = self.workers.get(event.worker_id, event.incarnation)
        arena = self._arena(event.page_bytes)
        effects: list[Effect] = []
        if worker.is_repeated(event.seq):
            return 0, effects
        check_commit(event, worker)
        blocks: list[ArenaBlock] = []
        writes: list[DiskWrite] = []
        spare: list[int] = []
        known: list[ArenaBlock] = []
        for new in event.blocks:
            worker.end_leases(event.page_bytes, new.pages)
            here = arena.blocks.get(new.key)
            stored = self.disk.get(new.key)
            is_kept = here is not None and (here.is_whole or bool(stored and not here.is_idle))
            if here is not None and is_kept:
                spare += new.pages
                known.append(here)
                continue
            if here is not None:
                arena.forget(here, effects)  # what was computed is surer than what may come
            block = new_block(arena, next(self._block_ids), new, event, self._loads.disk, now_ns)
            if stored is None:
                writes.append(self._writes.begin(block, new.expiry_s))
            else:
                block.owner = stored.owner
            arena.insert(block)
            blocks.append(block)
        arena.give(spare, effects)
        arena.publish_ready(blocks, effects)
        arena.settle(blocks, effects)
        self._storing.queue.add(writes, now_ns)
        self._arrivals.keep(arena, known, now_ns)  # what they continue may have come only now
        for new in event.blocks:
            self._tiers.replace(new, effects)
        for owner, expiry_s in {new.owner: new.expiry_s for new in event.blocks}.items():
            self._writes.set_expiry(owner, expiry_s)
            self._storing.set_expiry(owner, expiry_s, now_ns, effects)
        self._storing.send(now_ns, effects)
        self.counts.num_blocks_committed += len(event.blocks)
        return len(event.blocks), effects

    def on_stage(self, event: Stage, now_ns: int) -> tuple[Pinned, list[Effect]]:
        """Pin the longest stored prefix that fits the arena, and queue what is only on disk, or on
        the host that offers it.

        Raises:
            NotFound: `unknown_worker`.
            InvalidRequest: no arena of such pages.
        """
        worker = self.workers.get(event.worker_id, event.incarnation)
        arena = self._arena(event.page_bytes)
        effects: list[Effect] = []
        if event.hinted_by is not None:
            room = arena.hinted.room(event.hinted_by) // max(event.num_layers, 1)
            event = replace(event, blocks_max=min(event.blocks_max, room))
        of_peer = None if event.offer is None else self._loads.peer(event.offer.host_id)
        find = blocks_below(self.disk, self._loads.disk, of_peer, event)
        blocks = pin_prefix(arena, event, find, self._block_ids)
        filled = fill_prefix(arena, self._tiers.has_copy, blocks, now_ns, effects)
        if not blocks:
            return Pinned(), effects
        held = Ticket(event.page_bytes, blocks, now_ns, event.hinted_by)
        if held.hinted_by is not None:
            arena.hinted.take(held.hinted_by, held.num_pages)
        ticket = self.workers.add_ticket(worker, held)
        coming = self._loads.queue(blocks, filled, event.priority)
        self._arrivals.keep(arena, blocks, now_ns)
        # The first block last: a prefix is worth more than what follows it.
        effects += self._use([block.key for block in reversed(blocks)], now_ns)
        self._storing.write_again(arena, blocks, now_ns)
        self.objects.on_used(blocks[-1].owner, now_ns)
        self._loads.send(effects)
        self._storing.send(now_ns, effects)
        num_here = next((at for at, b in enumerate(blocks) if not b.is_whole), len(blocks))
        num_asked = sum(block.num_layers for block in blocks)
        self.counts.num_pages_resident += num_asked - coming.num_pages
        staged = Pinned(
            ticket=ticket,
            num_blocks=len(blocks),
            pages=_by_layer(block.pages for block in blocks),
            generations=_by_layer(block.generations for block in blocks),
            num_from_disk=coming.num_pages,
            ready_in_ns=coming.ready_in_ns,
            num_here=num_here,
            coming_from=None if num_here == len(blocks) else blocks[num_here].source.place,
            source_bytes_per_s=coming.bytes_per_s or self.disk_speed.bytes_per_s,
        )
        return staged, effects

    def _use(self, keys: list[BlockKey], now_ns: int) -> list[Effect]:
        """Blocks were used; the one to evict first first."""
        stale: dict[int, list[BlockKey]] = defaultdict(list)  # by their expiry, seconds
        for key in self._here.use(keys, now_ns, self._limits.noted_ns):
            if (block := self.disk.get(key)) is not None:
                stale[block.expiry_ns // NS_PER_S].append(key)
        return [TouchBlocks(keys, expiry_s) for expiry_s, keys in stale.items()]

    def _write_again(self, page_bytes: int, keys: Iterable[BlockKey], now_ns: int) -> None:
        arena = self.arenas[page_bytes]
        blocks = [arena.blocks[key] for key in keys if key in self.memory and key in arena.blocks]
        self._storing.write_again(arena, blocks, now_ns)

    def on_loaded(
        self, results: list[tuple[PageReads, list[LoadOutcome]]], duration_ns: int, now_ns: int
    ) -> list[Effect]:
        """The loader finished a batch, page by page, and published its words; it took so long. A
        block with a page that is gone or damaged is deleted everywhere; a read that failed fails
        this load only.
        """
        effects: list[Effect] = []
        self._loads.end_batch(self._loads.disk, results, duration_ns, effects)
        self._loads.send(effects)
        self._storing.send(now_ns, effects)
        return effects

    def on_fetched(
        self,
        host_id: HostId,
        pages: list[FetchedPages],
        duration_ns: int,
        now_ns: int,
        *,
        is_current: bool = True,
    ) -> list[Effect]:
        """A peer answered a batch, page by page, or did not; the words are published. Blocks that
        are whole now are written to this host's disk. Once it let us down, what it was not asked
        for yet is given up: who waits for that computes. An object that is damaged says nothing of
        the others.

        Args:
            is_current: they were asked for where the host is reached now; else they say nothing of
                who is asked there.
        """
        effects: list[Effect] = []
        source = self._loads.peer(host_id)
        results = [
            self._arrivals.judge(self.arenas[each.reads.page_bytes], each, effects)
            for each in pages
        ]
        outcomes = self._loads.end_batch(source, results, duration_ns, effects)
        for reads, _ in results:
            arena = self.arenas[reads.page_bytes]
            blocks = [b for at in reads.block_ids if (b := arena.holding.get(at)) is not None]
            for owner in {block.owner for block in blocks}:  # not known when they were staged
                self.objects.on_used(owner, now_ns)
            self._arrivals.keep(arena, blocks, now_ns)
        if is_current and LoadOutcome.FAILED in outcomes:
            self.peers.on_failed(host_id, now_ns)
            for block in self._loads.take_waiting(source):
                self.arenas[block.page_bytes].abandon(block, effects)
        elif is_current and outcomes == {LoadOutcome.CORRUPT} and host_id != OBJECTS:
            self.peers.on_failed(host_id, now_ns)
        elif is_current and LoadOutcome.CORRUPT not in outcomes:
            self.peers.on_good(host_id)
        self._loads.send(effects)
        self._storing.send(now_ns, effects)
        return effects

    def what_objects_may_give(
        self,
        owner: OwnerKey,
        keys: list[BlockKey],
        num_before: int,
        page_bytes: int,
        kv_at: Mapping[HostId, int],
        num_offered: int,
        now_ns: int,
    ) -> int:
        """How many leading blocks of `keys` the object store is said to have, if it is worth asking
        which; 0: it is not, because as many are here, or another host gives as many.
        """
        arena = self.arenas.get(page_bytes)
        if arena is None or not keys or self.peers.is_avoided(OBJECTS, now_ns):
            return 0
        num_there = self.objects.may_have(owner, worth_keeping(kv_at)) - num_before
        num_there = min(num_there, len(keys))
        if num_there <= num_offered or num_there <= self._num_here(arena, keys):
            return 0
        return num_there

    def offer_of_objects(
        self, keys: list[BlockKey], page_bytes: int, places: Mapping[BlockKey, Place]
    ) -> Offer | None:
        """What the object store gives with what is here, if these blocks are in it."""
        arena = self.arenas[page_bytes]
        num_blocks = num_leading(keys, lambda key: key in places or self._is_here(arena, key))
        return Offer(OBJECTS, num_blocks) if num_blocks > self._num_here(arena, keys) else None

    def on_locate(self, keys: list[BlockKey], num_layers: int, page_bytes: int) -> int:
        """How many of these blocks, from the first on, another host can fetch here."""
        return num_leading(keys, partial(self._serves, (num_layers, page_bytes)))

    def whom_to_ask(
        self,
        keys: list[BlockKey],
        num_before: int,
        page_bytes: int,
        kv_at: Mapping[HostId, int],
        now_ns: int,
    ) -> list[HostId]:
        """Hosts that are said to have more of a sequence than this one, and do answer; `ANYWHERE`:
        they are to be found.

        Args:
            num_before: blocks of it that precede the first of `keys`.
            kv_at: how many leading blocks of it they have, as somebody said.
        """
        if (arena := self.arenas.get(page_bytes)) is None:
            return []
        num_here = self._num_here(arena, keys)
        if num_here == len(keys):
            return []
        return self.peers.worth_asking(worth_keeping(kv_at), num_before + num_here, now_ns)

    def find_written(self, key: BlockKey) -> DiskWrite | None:
        """What the disk would be given of a block that it does not have, or not yet; in any
        thread.
        """
        return self._writes.get(key) or self.memory.write_of(key)

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
            missing: a block of it that the disk does not have; None: nobody knows of one.
            stored_bytes: of the object, if that is known.
        """
        effects: list[Effect] = []
        if missing is not None:
            self._tiers.lose_copy(missing, now_ns, effects)
        return effects + self.objects.on_saved(run, outcome, now_ns, stored_bytes)

    def on_disk_damaged(self, life: int, now_ns: int) -> list[Effect]:
        """The database of this life (the first is 1) cannot be used any more: a new one is begun.
        What the arena has whole stays there; what an earlier life is still said of is known.
        """
        effects: list[Effect] = []
        if life != self._disk_life:
            return effects
        self._disk_life += 1
        self.counts.num_disks_anew += 1
        effects.append(BeginDiskAnew())
        self._tiers.lose_disk(effects)
        self.locations.on_lost()
        return effects

    def on_delete(
        self, owner: OwnerKey, keys: list[BlockKey], now_ns: int
    ) -> tuple[int, list[Effect]]:
        """Forget these blocks and all that `owner` made, in every tier. Pages that somebody reads
        go when they are released.
        """
        effects: list[Effect] = []
        self._deleted.add(owner, now_ns)
        gone = dict.fromkeys([*keys, *self._tiers.owned(owner)])
        num_blocks = sum(self._tiers.forget(key, effects) for key in gone)
        self.objects.on_deleted(owner, effects)
        return num_blocks, effects

    def on_tick(self, now_ns: int) -> list[Effect]:
        """Now and then: let go of what is expired or too much."""
        effects: list[Effect] = []
        for ticket in self.workers.take_expired(now_ns - self._limits.ticket_ns):
            self._tiers.unpin(ticket, now_ns, effects)
            self.counts.num_tickets_expired += 1
        self._deleted.expire(now_ns)
        self._shrinking.step(now_ns, effects)
        self._storing.send(now_ns, effects)
        return effects + self.objects.on_tick(now_ns)

    def on_drop_more(self, now_ns: int) -> list[Effect]:
        """Everybody who waited when `DropMore` was said has had a turn."""
        effects: list[Effect] = []
        self._shrinking.go_on(now_ns, effects)
        return effects

    def on_stop(self) -> list[Effect]:
        """What waits to be written is written now, or never."""
        effects: list[Effect] = []
        self._storing.queue.flush(self._writes.is_wanted, effects)
        return effects

    @property
    def is_loading(self) -> bool:
        """Whether anything is on its way into an arena."""
        return self._loads.is_loading

    @property
    def num_bytes_waiting(self) -> int:
        """That have not come yet."""
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

    def _arena(self, page_bytes: int) -> ArenaTier:
        if (arena := self.arenas.get(page_bytes)) is None:
            raise InvalidRequest(f"no arena of {page_bytes}-byte pages is open", "page_bytes")
        return arena

    def _serves(self, shape: tuple[int, int], key: BlockKey) -> bool:
        if (stored := self.disk.shape_of(key)) is not None:
            return (stored.num_layers, stored.page_bytes) == shape
        write = self.find_written(key)
        return write is not None and (len(write.pages), write.page_bytes) == shape

    def _num_here(self, arena: ArenaTier, keys: list[BlockKey]) -> int:
        return num_leading(keys, partial(self._is_here, arena))

    def _is_here(self, arena: ArenaTier, key: BlockKey) -> bool:
        """Whether nobody else has to be asked for the block."""
        block = arena.blocks.get(key)
        return (block is not None and not block.num_missing) or key in self.disk


def num_leading(keys: Iterable[BlockKey], is_had: Callable[[BlockKey], bool]) -> int:
    """How many come before the first that is not to be had."""
    return sum(1 for _ in takewhile(is_had, keys))


def _by_layer(numbers: Iterable[list[int]]) -> list[int]:
    """A number a layer of each block, as ``[layer][block]``.

    >>> _by_layer([[1, 2], [3, 4]])
    [1, 3, 2, 4]
    """
    return list(chain.from_iterable(zip(*numbers, strict=True)))
