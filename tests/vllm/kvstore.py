"""A kvstore that tests can spoil: a real arena, its messages, and blocks in a dictionary."""

from pathlib import Path

from shared.arena import Arena, PageState, checksum
from shared.blocks import BlockKey, pack_keys, unpack_keys
from shared.errors import NoCapacity, PeerUnavailable
from shared.ids import HostId
from shared.owners import owner_key
from shared.wire.messages import (
    KvCommit,
    KvCommitted,
    KvLease,
    KvLeased,
    KvOpen,
    KvOpened,
    KvRelease,
    KvRenew,
    KvRenewed,
    KvStage,
    KvStaged,
    pack_ints,
    unpack_ints,
)
from shared.wire.subjects import KV_COMMIT, KV_LEASE, KV_OPEN, KV_RELEASE, KV_RENEW, KV_STAGE
from tests.memory_bus import MemoryBus

HOST = HostId("h")
NUM_PAGES = 4096


class SmallKvstore:
    """Attributes:
    blocks: pages of each block, one a layer.
    num_asked, num_staged: blocks, of all questions.
    is_away: it answers nothing; `refuses`: it has no room for new blocks.
    spoil: what becomes of the pages of the next answer: nothing, they are `BAD` by the time that
        they are read, or do not come.
    """

    def __init__(self, bus: MemoryBus, folder: Path) -> None:
        self._bus, self._folder = bus, folder
        self.arena: Arena | None = None
        self.blocks: dict[BlockKey, list[int]] = {}
        self.sessions: dict[str, list[BlockKey]] = {}  # keys of their blocks, in order
        self.free: list[int] = []
        self.tickets: set[int] = set()
        self.num_asked = self.num_staged = self._last_ticket = 0
        self.spoil: PageState | None = None
        self.is_away = self.refuses = False
        self.num_opened = 0
        self._generations: dict[int, int] = {}

    async def serve(self) -> None:
        bus = self._bus
        for subject, handler in (
            (KV_OPEN, self._open), (KV_LEASE, self._lease), (KV_COMMIT, self._commit),
            (KV_STAGE, self._stage), (KV_RENEW, self._renew),
        ):  # fmt: skip
            await bus.serve(subject, handler, HOST)
        await bus.subscribe(KV_RELEASE, self._release, HOST)

    async def _open(self, message: KvOpen) -> KvOpened:
        self._check()
        self.num_opened += 1
        if self.arena is None:
            path = self._folder / "arena"
            self.arena = Arena.create(path, NUM_PAGES, message.page_bytes)
            self.free = list(range(NUM_PAGES))
        lease = self._folder / "lease"
        lease.touch()
        return KvOpened(arena_path=str(self.arena.path), lease_path=str(lease))

    async def _lease(self, message: KvLease) -> KvLeased:
        pages, self.free = self.free[: message.num_pages], self.free[message.num_pages :]
        if not pages:
            raise NoCapacity("full")
        return KvLeased(pages=pack_ints(pages))

    async def _commit(self, message: KvCommit) -> KvCommitted:
        if self.refuses:
            raise NoCapacity("full")
        assert self.arena is not None
        for block in message.blocks:
            pages = unpack_ints(block.pages)
            sums = unpack_ints(block.checksums, "Q")
            assert sums == [checksum(self.arena.pages[page].data) for page in pages]
            for page in pages:
                generation = self._generations[page] = self._generations.get(page, 0) + 1
                self.arena.set_word(page, generation, PageState.READY)
            key = BlockKey(bytes.fromhex(block.key))
            self.blocks[key] = pages
            self.sessions.setdefault(block.owner, []).append(key)
        return KvCommitted()

    async def _stage(self, message: KvStage) -> KvStaged:
        self._check()
        assert self.arena is not None
        keys = unpack_keys(message.keys)
        if message.session_id is not None and not keys:
            keys = self.sessions.get(owner_key(message.tenant, message.session_id).hex(), [])
        self.num_asked += len(keys)
        rows = []
        for key in keys:
            if key not in self.blocks:
                break
            rows.append(self.blocks[key])
        self.num_staged += len(rows)
        pages = [row[layer] for layer in range(message.num_layers) for row in rows]
        generations = [self._generations.get(page, 0) for page in pages]
        if self.spoil is not None and rows:
            for row in rows[len(rows) // 2 :]:
                self.arena.set_word(row[-1], self._generations[row[-1]], self.spoil)
            for key in keys[len(rows) // 2 :]:
                self.blocks.pop(key, None)
            self.spoil = None
        self._last_ticket += 1
        self.tickets.add(self._last_ticket)
        return KvStaged(
            ticket=self._last_ticket, num_blocks=len(rows), pages=pack_ints(pages),
            generations=pack_ints(generations), num_here=len(rows),
            keys="" if message.keys else pack_keys(keys[: len(rows)]),
        )  # fmt: skip

    def _check(self) -> None:
        if self.is_away:
            raise PeerUnavailable("it is away")

    async def _renew(self, message: KvRenew) -> KvRenewed:
        return KvRenewed()

    def _release(self, message: KvRelease) -> None:
        if not message.num_kept:
            self.tickets.discard(message.ticket)
        self.free += unpack_ints(message.pages)
