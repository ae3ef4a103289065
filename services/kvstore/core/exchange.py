"""What comes from other hosts and the object store, and what this host gives to others."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import takewhile

from services.kvstore.core.base.effects import DiskWrite, Effect, LoadOutcome
from services.kvstore.core.base.events import RemotePrefix
from services.kvstore.core.base.runs import Place, Run
from services.kvstore.core.loading.finding import Finding
from services.kvstore.core.parts import Parts
from services.kvstore.core.tiers.arena_tier import ArenaTier
from services.kvstore.core.writing.arrivals import FetchedPages
from shared.blocks import BlockKey
from shared.ids import HostId
from shared.locations import OBJECTS, worth_keeping
from shared.owners import OwnerKey


class Exchange:
    """Attributes:
    host_id: our own.
    finding: decides when all hosts are asked, because no location is known.
    """

    def __init__(self, parts: Parts, host_id: HostId) -> None:
        self.host_id = host_id
        self._arenas = parts.arenas
        self._blocks = parts.blocks
        self._loads = parts.loads
        self._objects = parts.objects
        self._storing = parts.storing
        self._arrivals = parts.arrivals
        self._peers = parts.peers
        self.finding: Finding = parts.finding

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
        are whole now are written to this host's disk. Once the peer fails, loads that it was not
        asked for yet are abandoned, and the turns that wait for them compute. A damaged object
        says nothing about the others.

        Args:
            is_current: the pages were requested from the host's present address; if not, they say
                nothing about the kvstore that serves there now.
        """
        effects: list[Effect] = []
        source = self._loads.peer(host_id)
        results = [
            self._arrivals.judge(self._arenas[each.reads.page_bytes], each, effects)
            for each in pages
        ]
        outcomes = self._loads.end_batch(source, results, duration_ns, effects)
        for reads, _ in results:
            arena = self._arenas[reads.page_bytes]
            blocks = [b for at in reads.block_ids if (b := arena.holding.get(at)) is not None]
            for owner in {block.owner for block in blocks}:  # not known when they were staged
                self._objects.on_used(owner, now_ns)
            self._arrivals.keep(arena, blocks, now_ns)
        if is_current and LoadOutcome.FAILED in outcomes:
            self._peers.on_failed(host_id, now_ns)
            for block in self._loads.take_waiting(source):
                self._arenas[block.page_bytes].abandon(block, effects)
        elif is_current and outcomes == {LoadOutcome.CORRUPT} and host_id != OBJECTS:
            self._peers.on_failed(host_id, now_ns)
        elif is_current and LoadOutcome.CORRUPT not in outcomes:
            self._peers.on_good(host_id)
        self._loads.send(effects)
        self._storing.send(now_ns, effects)
        return effects

    def on_no_answer(self, host_id: HostId, now_ns: int) -> None:
        """A host, or the object store, did not say what it has: it is not asked for a while."""
        self._peers.on_failed(host_id, now_ns)

    def on_object_listed(self, run: Run, num_bytes: int, used_at_ns: int) -> None:
        """A run was in the object store before the start, and is this host's."""
        self._objects.on_listed(run, num_bytes, used_at_ns)

    def on_objects_gone(self, runs: Iterable[Run]) -> None:
        """These runs are not in the object store any more."""
        self._objects.on_gone(list(runs))

    def runs_of(self, owner: OwnerKey) -> list[Run]:
        """What this host wrote of a session to the object store."""
        return self._objects.tier.runs_of(owner)

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
        arena = self._arenas.get(page_bytes)
        if arena is None or not keys or self._peers.is_avoided(OBJECTS, now_ns):
            return 0
        num_there = self._objects.may_have(owner, worth_keeping(kv_at)) - num_before
        num_there = min(num_there, len(keys))
        if num_there <= num_offered or num_there <= self._num_here(arena, keys):
            return 0
        return num_there

    def offer_of_objects(
        self, keys: list[BlockKey], page_bytes: int, places: Mapping[BlockKey, Place]
    ) -> RemotePrefix | None:
        """What the object store gives with what is here, if these blocks are in it."""
        arena = self._arenas[page_bytes]
        num_blocks = num_leading(keys, lambda key: key in places or self._is_here(arena, key))
        if num_blocks <= self._num_here(arena, keys):
            return None
        return RemotePrefix(OBJECTS, num_blocks)

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
            kv_at: how many leading blocks of it each host is said to have.
        """
        if (arena := self._arenas.get(page_bytes)) is None:
            return []
        num_here = self._num_here(arena, keys)
        if num_here == len(keys):
            return []
        return self._peers.worth_asking(worth_keeping(kv_at), num_before + num_here, now_ns)

    def find_written(self, key: BlockKey) -> DiskWrite | None:
        """What the disk would be given of a block that it does not have, or not yet; in any
        thread.
        """
        return self._storing.writes.get(key) or self._blocks.arena_only.write_of(key)

    def _serves(self, shape: tuple[int, int], key: BlockKey) -> bool:
        if (stored := self._blocks.disk.shape_of(key)) is not None:
            return (stored.num_layers, stored.page_bytes) == shape
        write = self.find_written(key)
        return write is not None and (len(write.pages), write.page_bytes) == shape

    def _num_here(self, arena: ArenaTier, keys: list[BlockKey]) -> int:
        return num_leading(keys, partial(self._is_here, arena))

    def _is_here(self, arena: ArenaTier, key: BlockKey) -> bool:
        """Whether the block need not be fetched from another host."""
        block = arena.blocks.get(key)
        return (block is not None and not block.num_missing) or key in self._blocks.disk


def num_leading(keys: Iterable[BlockKey], is_had: Callable[[BlockKey], bool]) -> int:
    """How many keys precede the first for which `is_had` is False."""
    return sum(1 for _ in takewhile(is_had, keys))
