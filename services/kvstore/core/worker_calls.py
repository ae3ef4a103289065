"""Calls of workers: they open, lease pages, commit blocks, stage, renew and release."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, takewhile, zip_longest

from services.kvstore.core.base.effects import DiskWrite, Effect
from services.kvstore.core.base.events import Commit, NewBlock, Open, Pinned, Release, Renew, Stage
from services.kvstore.core.loading.loads import Coming
from services.kvstore.core.loading.staging import blocks_below, fill_prefix, pin_prefix
from services.kvstore.core.parts import Parts
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.tiers.workers import OpenWorker, Ticket
from services.kvstore.core.tiers.writes import new_block
from services.kvstore.core.uses import Uses
from shared.blocks import BLOCK_TOKENS, BlockKey, child_key
from shared.errors import InvalidRequest, NotFound
from shared.eviction import GUARDED_SHARE, Guard
from shared.ids import WorkerId


def check_commit(event: Commit, worker: OpenWorker) -> None:
    """Raises:
    InvalidRequest: the model was not announced, a list has the wrong length, a page is not leased
        to the worker or named twice, or a key is not that of its tokens.
    """
    shape = worker.shapes.get(event.fingerprint)
    if shape is None or shape[1] != event.page_bytes:
        raise InvalidRequest("the model of this commit was not opened", "fingerprint")
    pages = [page for block in event.blocks for page in block.pages]
    num_meant = len(worker.meant(event.page_bytes, pages, event.last_lease))
    if len(set(pages)) != len(pages) or num_meant != len(pages):
        raise InvalidRequest("a page is not leased, or is named twice", "pages")
    for block in event.blocks:
        _check_block(block, num_layers=shape[0])


def _check_block(block: NewBlock, num_layers: int) -> None:
    if len(block.pages) != num_layers or len(block.checksums) != num_layers:
        raise InvalidRequest(f"a block takes {num_layers} pages and checksums", "pages")
    if not 0 < len(block.tokens) <= BLOCK_TOKENS:
        raise InvalidRequest(f"a block has 1 to {BLOCK_TOKENS} tokens", "tokens")
    if child_key(block.parent, block.tokens) != block.key:
        raise InvalidRequest("the key is not that of these tokens after this parent", "key")


class WorkerCalls:
    """Events return effects; those that answer a caller return the answer first."""

    def __init__(self, parts: Parts, uses: Uses) -> None:
        self._uses = uses
        self._limits = parts.limits
        self._learns = parts.limits.eviction == "predicted"
        self._counts = parts.counts
        self._arenas = parts.arenas
        self._blocks = parts.blocks
        self._tiers = parts.tiers
        self._workers = parts.workers
        self._loads = parts.loads
        self._objects = parts.objects
        self._storing = parts.storing
        self._arrivals = parts.arrivals
        self._block_ids = parts.block_ids
        self._returns = parts.returns

    def on_open(self, event: Open, now_ns: int) -> list[Effect]:
        """A worker introduces itself, which gives back what an earlier incarnation of it held. A
        repeated call changes nothing: by now the worker may hold pages.

        Raises:
            NotFound: a later incarnation has opened since, so this one has ended.
        """
        if self._workers.is_retired(event.worker_id, event.incarnation):
            raise NotFound(
                f"{event.worker_id} has opened again since", "incarnation", "unknown_worker"
            )
        effects: list[Effect] = []
        old = self._workers.find(event.worker_id)
        if old is not None and old.incarnation != event.incarnation:
            effects += self.on_worker_gone(old.worker_id, old.incarnation, now_ns)
        self._workers.open(event)
        return effects

    def on_worker_gone(self, worker_id: WorkerId, incarnation: str, now_ns: int) -> list[Effect]:
        """A worker's process ended: reclaim its leases and tickets."""
        effects: list[Effect] = []
        if (worker := self._workers.close(worker_id, incarnation)) is not None:
            for ticket in worker.tickets.values():
                self._tiers.unpin(ticket, now_ns, effects)
            for page_bytes, pages in worker.leased.items():
                self._arenas[page_bytes].give(sorted(pages), effects)
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
        """Pages to write new KV into, as many as there are, at most `num_pages` and what
        `Workers.lease_room` leaves it. `number` is that of the worker's request.

        Raises:
            NotFound: `unknown_worker`.
            InvalidRequest: no arena of such pages.
        """
        worker = self._workers.get(worker_id, incarnation)
        effects: list[Effect] = []
        arena = self._arena(page_bytes)
        room = self._workers.lease_room(
            worker, page_bytes, arena.num_pages, self._limits.lease_share
        )
        pages = arena.take(max(min(num_pages, room), 0), self._tiers.has_copy, now_ns, effects)
        worker.lease(page_bytes, pages, number, now_ns)
        return pages, effects

    def on_renew(self, event: Renew, now_ns: int) -> tuple[list[BlockKey], list[Effect]]:
        """A worker still holds these tickets and leased pages; those that are gone are ignored.
        Pages that were leased to it long ago and that it does not name go back.

        Returns:
            Blocks that left this host since the worker's last renewal, and have not come again.

        Raises:
            NotFound: `unknown_worker`.
        """
        worker = self._workers.get(event.worker_id, event.incarnation)
        worker.renew(event, now_ns)
        effects: list[Effect] = []
        if pages := worker.take_forgotten(event, now_ns - self._limits.ticket_ns):
            self._arenas[event.page_bytes].give(pages, effects)
        if event.used and event.page_bytes in self._arenas:
            self._uses.report(event.page_bytes, event.used)
            self._uses.step(now_ns, effects)
        gone = [key for key in dict.fromkeys(worker.gone) if not self._tiers.has(key)]
        worker.gone.clear()
        return gone, effects

    def on_release(self, event: Release, now_ns: int) -> list[Effect]:
        """Unpin, perhaps a part, and give back. What the worker does not hold is ignored: it was
        reclaimed, and may have been leased to it again."""
        worker = self._workers.find(event.worker_id)
        effects: list[Effect] = []
        if worker is None or worker.incarnation != event.incarnation:
            return effects
        if worker.is_repeated(event.seq):
            return effects
        if (ticket := worker.tickets.get(event.ticket)) is not None:
            # Pages and blocks arrive in any order; a ticket lists blocks in that of the sequence.
            self._arrivals.keep(self._arenas[ticket.page_bytes], ticket.blocks, now_ns)
            if 0 < event.num_kept < len(ticket.blocks):
                self._tiers.unpin(ticket.split(event.num_kept), now_ns, effects)
            elif not event.num_kept:
                self._tiers.unpin(worker.tickets.pop(event.ticket), now_ns, effects)
        if pages := worker.meant(event.page_bytes, dict.fromkeys(event.pages), event.last_lease):
            worker.end_leases(event.page_bytes, pages)
            self._arenas[event.page_bytes].give(pages, effects)
        self._storing.send(now_ns, effects)
        return effects

    def on_commit(self, event: Commit, now_ns: int) -> tuple[int, list[Effect]]:
        """Take new blocks over; a block that is here already gives its pages back. A repeated call
        changes nothing.

        Raises:
            NotFound: `unknown_worker`.
            InvalidRequest: of another shape than announced, or pages that are not leased; nothing
                was taken over.
        """
        worker = self._workers.get(event.worker_id, event.incarnation)
        arena = self._arena(event.page_bytes)
        effects: list[Effect] = []
        if worker.is_repeated(event.seq):
            return 0, effects
        check_commit(event, worker)
        for new in event.blocks:
            worker.end_leases(event.page_bytes, new.pages)
        known = self._insert(arena, event, now_ns, effects)
        self._arrivals.keep(arena, known, now_ns)  # what precedes them may have come only now
        for new in event.blocks:
            self._tiers.replace(new, effects)
        for owner, expiry_s in {new.owner: new.expiry_s for new in event.blocks}.items():
            self._storing.writes.set_expiry(owner, expiry_s)
            self._storing.set_expiry(owner, expiry_s, now_ns, effects)
        self._storing.send(now_ns, effects)
        self._counts.num_blocks_committed += len(event.blocks)
        return len(event.blocks), effects

    def _insert(
        self, arena: ArenaTier, event: Commit, now_ns: int, effects: list[Effect]
    ) -> list[ArenaBlock]:
        """Blocks of a commit become the arena's, and are written if the disk lacks them.

        Returns:
            Blocks that the arena had already and keeps instead of the new ones.
        """
        blocks: list[ArenaBlock] = []
        writes: list[DiskWrite] = []
        spare: list[int] = []
        known: list[ArenaBlock] = []
        for new in event.blocks:
            here = arena.blocks.get(new.key)
            stored = self._blocks.disk.get(new.key)
            if here is not None and (here.is_whole or bool(stored and not here.is_idle)):
                spare += new.pages
                known.append(here)
                continue
            if here is not None:
                arena.forget(here, effects)  # what was computed is surer than what may come
            parent = arena.blocks.get(new.parent) or self._blocks.disk.get(new.parent)
            block_id, source = next(self._block_ids), self._loads.disk
            block = new_block(arena, block_id, new, event, source, now_ns, parent)
            if stored is None:
                writes.append(self._storing.writes.begin(block, new.expiry_s))
            else:
                block.owner = stored.owner
            arena.insert(block)
            blocks.append(block)
        self._set_kinds(blocks)
        arena.give(spare, effects)
        arena.publish_ready(blocks, effects)
        arena.settle(blocks, effects)
        self._storing.queue.add(writes, now_ns)
        return known

    def on_stage(self, event: Stage, now_ns: int) -> tuple[Pinned, list[Effect]]:
        """Pin the longest stored prefix that fits the arena, and queue what is only on disk, or on
        the host that has it.

        Raises:
            NotFound: `unknown_worker`.
            InvalidRequest: no arena of such pages.
        """
        worker = self._workers.get(event.worker_id, event.incarnation)
        arena = self._arena(event.page_bytes)
        effects: list[Effect] = []
        if event.hinted_by is not None:
            room = arena.hinted.room(*event.hinted_by) // max(event.num_layers, 1)
            event = replace(event, blocks_max=min(event.blocks_max, room))
        of_peer = None if event.offer is None else self._loads.peer(event.offer.host_id)
        find = blocks_below(self._blocks.disk, self._loads.disk, of_peer, event)
        blocks = pin_prefix(arena, event, find, self._block_ids)
        self._learn(event, blocks, now_ns)
        filled = fill_prefix(arena, self._tiers.has_copy, blocks, now_ns, effects)
        if not blocks:
            return Pinned(), effects
        held = Ticket(event.page_bytes, blocks, now_ns, event.hinted_by)
        if held.hinted_by is not None:
            arena.hinted.take(*held.hinted_by, held.num_pages)
        ticket = self._workers.add_ticket(worker, held)
        coming = self._loads.queue(blocks, filled, event.priority)
        self._arrivals.keep(arena, blocks, now_ns)
        # The first block last: a prefix is worth more than what follows it.
        self._uses.use([block.key for block in reversed(blocks)], now_ns, effects)
        self._storing.write_again(arena, blocks, now_ns)
        self._objects.on_used(blocks[-1].owner, now_ns)
        self._loads.send(effects)
        self._storing.send(now_ns, effects)
        return self._pinned(ticket, blocks, coming), effects

    def _set_kinds(self, blocks: list[ArenaBlock]) -> None:
        """New blocks are of the kinds of the turns that made them, as far as one is known."""
        run: list[ArenaBlock] = []
        for block, after in zip_longest(blocks, blocks[1:]):
            run.append(block)
            if after is not None and after.parent == block.key:
                continue
            if (kinds := self._returns.kinds_of([each.key for each in run])) is not None:
                for each in run:
                    each.return_kind = kinds.of(each.depth)
            run = []

    def _learn(self, event: Stage, blocks: list[ArenaBlock], now_ns: int) -> None:
        """A turn needs these; one that is only announced may never come."""
        if self._learns and event.hinted_by is None and event.keys:
            first = event.num_before
            found_in = self._found_in(event, blocks)
            kinds = self._returns.arrive(event.keys, now_ns, first, found_in)
            self._tiers.set_kinds([block.key for block in blocks], event.page_bytes, kinds, first)

    def _found_in(self, event: Stage, blocks: list[ArenaBlock]) -> list[tuple[Guard, int]]:
        """How many of the first of these blocks the arena has, and this host."""
        arena, disk = self._arena(event.page_bytes), self._blocks.disk
        num_pages = arena.num_pages - self._workers.num_leased(event.page_bytes)
        block_bytes = event.num_layers * event.page_bytes
        arena.guard.num_blocks_max = GUARDED_SHARE * max(num_pages / event.num_layers, 1)
        disk.guard.num_blocks_max = GUARDED_SHARE * max(disk.capacity_bytes / block_bytes, 1)
        in_arena = takewhile(lambda block: block.is_whole, blocks)
        on_host = takewhile(lambda block: block.is_whole or block.key in disk, blocks)
        return [(arena.guard, len(list(in_arena))), (disk.guard, len(list(on_host)))]

    def _pinned(self, ticket: int, blocks: list[ArenaBlock], coming: Coming) -> Pinned:
        """The answer to a stage; counts what was in the arena."""
        num_here = next((at for at, b in enumerate(blocks) if not b.is_whole), len(blocks))
        num_asked = sum(block.num_layers for block in blocks)
        self._counts.num_pages_resident += num_asked - coming.num_pages
        return Pinned(
            ticket=ticket,
            num_blocks=len(blocks),
            pages=_by_layer(block.pages for block in blocks),
            generations=_by_layer(block.generations for block in blocks),
            num_pages_loading=coming.num_pages,
            ready_in_ns=coming.ready_in_ns,
            num_here=num_here,
            coming_from=None if num_here == len(blocks) else blocks[num_here].source.place,
            source_bytes_per_s=coming.bytes_per_s or self._loads.disk.speed.bytes_per_s,
        )

    def _arena(self, page_bytes: int) -> ArenaTier:
        if (arena := self._arenas.get(page_bytes)) is None:
            raise InvalidRequest(f"no arena of {page_bytes}-byte pages is open", "page_bytes")
        return arena


def _by_layer(numbers: Iterable[list[int]]) -> list[int]:
    """A number a layer of each block, as ``[layer][block]``.

    >>> _by_layer([[1, 2], [3, 4]])
    [1, 3, 2, 4]
    """
    return list(chain.from_iterable(zip(*numbers, strict=True)))
