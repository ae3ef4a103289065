"""A machine in memory for a kvstore: event loop with a clock that jumps, bus, Redis, disk, arenas,
peers, object store. No threads, files or sockets.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from services.kvstore.adapters.files import Found
from services.kvstore.core import DiskWrite, LoadOutcome, PageReads
from services.kvstore.index.redis_index import SEND_LOCATIONS
from services.kvstore.peers.fetches import PeerRead, PeerReport
from services.kvstore.peers.sources import PageSource
from services.kvstore.peers.transport import PeerLink
from services.kvstore.ports import Ports
from services.kvstore.tiers.disk import FOUND, BlockRecord, Scan, StoredPage
from services.kvstore.tiers.objects.store import Listed, NoObject
from services.kvstore.tiers.values import fingerprint_digest
from shared.arena import ArenaView, Bytes, PageState
from shared.blocks import BlockKey
from shared.ids import HostId, WorkerId
from shared.wire.messages import decode, encode
from shared.wire.subjects import Subject
from tests.jumping_loop import LoopClock

READ_S = 0.002  # for a batch of the disk, an object or a peer


class LoopExecutor:
    """Work runs a little later on the loop, or when the executor is stopped."""

    def __init__(self, name: str, num_threads: int) -> None:
        self.num_threads = num_threads
        self.lock: AbstractContextManager[None] = nullcontext()
        self._works: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None]) -> None:
        self._works.append(work)
        asyncio.get_running_loop().call_later(READ_S, self._run_one)

    def stop(self, timeout_s: float | None = None) -> None:
        while self._works:
            self._run_one()

    def _run_one(self) -> None:
        if self._works:
            self._works.pop(0)()


@dataclass
class Wires:
    """What all buses of a deployment share."""

    handlers: dict[str, list[Callable[[Any], Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )


class MemoryBus:
    """Messages go through the codec, and arrive at the loop's next turn."""

    payload_bytes_max = 1 << 20
    connected = True

    def __init__(self, wires: Wires) -> None:
        self._handlers = wires.handlers

    async def serve(self, subject: Subject[Any, Any], handler: Any, *ids: str) -> "_Subscription":
        async def answer(data: bytes) -> Any:
            return decode(subject.reply, encode(await handler(decode(subject.request, data))))

        return self._subscribe(subject.name(*ids), answer)

    async def serve_some(self, subject: Subject[Any, Any], handler: Any) -> "_Subscription":
        return self._subscribe(subject.name(), lambda data: handler(decode(subject.request, data)))

    async def subscribe(
        self, subject: Subject[Any, Any], handler: Any, *ids: str
    ) -> "_Subscription":
        async def take(data: bytes) -> None:
            handler(decode(subject.request, data))

        return self._subscribe(subject.name(*ids), take)

    async def request(
        self, subject: Subject[Any, Any], message: object, *ids: str, **_: float
    ) -> Any:
        await asyncio.sleep(0)
        (handler,) = self._handlers[subject.name(*ids)]
        return await handler(encode(message))

    async def publish(self, subject: Subject[Any, Any], message: object, *ids: str) -> None:
        for handler in self._handlers[subject.name(*ids)]:
            await handler(encode(message))

    async def gather(self, subject: Subject[Any, Any], message: object, **_: object) -> list[Any]:
        handlers = list(self._handlers[subject.name()])
        replies = [await handler(encode(message)) for handler in handlers]
        return [reply for reply in replies if reply is not None]

    async def flush(self) -> None:
        pass

    def _subscribe(self, name: str, handler: Callable[[bytes], Awaitable[Any]]) -> "_Subscription":
        self._handlers[name].append(handler)
        return _Subscription(self._handlers[name], handler)


@dataclass
class _Subscription:
    handlers: list[Callable[[Any], Any]]
    handler: Callable[[Any], Any]

    async def unsubscribe(self) -> None:
        self.handlers.remove(self.handler)


class MemoryRedis:
    """Attributes:
    values, hashes: by key.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.hashes: dict[str, dict[str, bytes]] = defaultdict(dict)

    async def get(self, name: str, /) -> bytes | None:
        return self.values.get(name)

    async def set(
        self, name: str, value: str | bytes | int, /, *, px: int | None = None, nx: bool = False
    ) -> bool | None:
        if nx and name in self.values:
            return None
        self.values[name] = value if isinstance(value, bytes) else str(value).encode()
        return True

    async def hget(self, name: str, key: str, /) -> bytes | None:
        return self.hashes[name].get(key)

    async def smembers(self, name: str, /) -> AbstractSet[bytes]:
        return frozenset()

    async def zcount(self, name: str, low: int, high: str, /) -> int:
        return 0

    async def time(self) -> tuple[int, int]:
        return LoopClock().wall_ns() // 10**9, 0

    async def eval(self, script: str, numkeys: int, /, *keys_and_args: Any) -> int:
        """The script of locations, but for its expiries."""
        assert script == SEND_LOCATIONS, "no other is sent here"
        hosts, *sessions = keys_and_args[:numkeys]
        host_id, before, claim, _, *said = keys_and_args[numkeys:]
        if before and self.hashes[hosts].get(host_id) != before.encode():
            return 0
        for key, location in zip(sessions, said, strict=True):
            if location:
                self.hashes[key][host_id] = location.encode()
            else:
                self.hashes[key].pop(host_id, None)
        self.hashes[hosts][host_id] = claim.encode()
        return 1

    async def scan_iter(self, *, match: str, count: int) -> AsyncIterator[str]:
        for name in [name for name in self.values if fnmatch(name, match)]:
            yield name


@dataclass
class _Stored:
    record: BlockRecord
    pages: list[bytes]
    used_s: int
    expiry_s: int = 0


class MemoryDisk:
    """Survives a restart of the kvstore.

    Attributes:
        num_writes: transactions so far.
    """

    def __init__(self) -> None:
        self.blocks: dict[BlockKey, _Stored] = {}
        self.num_writes = self.num_syncs = 0

    def scan(self) -> Scan:
        found = np.zeros(len(self.blocks), FOUND)
        for at, (key, block) in enumerate(self.blocks.items()):
            record = block.record
            found[at] = (
                key, record.parent, record.owner, record.num_layers, record.page_bytes, at,
                block.used_s, block.expiry_s,
            )  # fmt: skip
        return Scan(found)

    @contextmanager
    def read(self) -> Iterator["_DiskReader"]:
        yield _DiskReader(dict(self.blocks))

    @contextmanager
    def write(self, now_s: int) -> Iterator["_DiskWriter"]:
        writer = _DiskWriter(dict(self.blocks), now_s)
        yield writer
        self.blocks = writer.blocks
        self.num_writes += 1

    def reset(self) -> None:
        self.blocks = {}

    def sync(self) -> None:
        self.num_syncs += 1


@dataclass
class _DiskReader:
    blocks: Mapping[BlockKey, _Stored]

    def copy(
        self, key: BlockKey, layer: int, out: Bytes, *, may_wait: bool = True
    ) -> LoadOutcome | None:
        if (block := self.blocks.get(key)) is None:
            return LoadOutcome.MISSING
        out[:] = np.frombuffer(block.pages[layer], np.uint8)
        return LoadOutcome.READY

    def page(self, key: BlockKey, layer: int) -> StoredPage | None:
        if (block := self.blocks.get(key)) is None:
            return None
        return StoredPage(block.record, memoryview(block.pages[layer]))


@dataclass
class _DiskWriter:
    blocks: dict[BlockKey, _Stored]
    now_s: int

    def put(self, write: DiskWrite, pages: Bytes) -> None:
        record = BlockRecord(
            write.key, write.parent, fingerprint_digest(write.fingerprint), write.page_bytes,
            self.now_s, 0, list(write.tokens), list(write.checksums), write.owner,
        )  # fmt: skip
        stored = [pages[page].tobytes() for page in write.pages]
        self.blocks[write.key] = _Stored(record, stored, self.now_s, write.expiry_s or 0)

    def delete(self, key: BlockKey) -> None:
        self.blocks.pop(key, None)

    def touch(self, keys: Sequence[BlockKey], expiry_s: int = 0) -> None:
        for key in keys:
            if (block := self.blocks.get(key)) is not None:
                self.blocks[key] = replace(
                    block, used_s=self.now_s, expiry_s=expiry_s or block.expiry_s
                )


class MemoryArenas:
    """Arenas that are as large as they will be at once."""

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self.on_grown: Callable[[int, int], None] = lambda page_bytes, num_pages: None
        self.by_page_bytes: dict[int, ArenaView] = {}

    async def get(self, page_bytes: int, num_layers: int) -> ArenaView:
        if page_bytes not in self.by_page_bytes:
            words = np.zeros(self._num_pages, np.uint64)
            pages = np.zeros((self._num_pages, page_bytes), np.uint8)
            self.by_page_bytes[page_bytes] = ArenaView(Path(f"kv-{page_bytes}"), words, pages)
        return self.by_page_bytes[page_bytes]

    def num_ready(self, page_bytes: int) -> int:
        return self._num_pages

    def close(self) -> None:
        self.by_page_bytes.clear()


class MemoryLeases:
    """Attributes:
    ended: incarnations whose process has ended.
    """

    def __init__(self) -> None:
        self.open: set[tuple[WorkerId, str]] = set()
        self.ended: set[tuple[WorkerId, str]] = set()

    def add(self, worker_id: WorkerId, incarnation: str) -> Path:
        self.open.add((worker_id, incarnation))
        return Path(f"{worker_id}.{incarnation}.lease")

    def drop(self, worker_id: WorkerId, incarnation: str) -> None:
        self.open.discard((worker_id, incarnation))

    def poll(self) -> list[tuple[WorkerId, str]]:
        return sorted(self.open & self.ended)

    def close(self) -> None:
        self.open.clear()


class MemoryBucket:
    """An object store."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, name: str, data: Any) -> None:
        self.objects[name] = bytes(data)

    def get(self, name: str, start: int, num_bytes: int) -> memoryview:
        if name not in self.objects:
            raise NoObject(name)
        return memoryview(self.objects[name])[start : start + num_bytes]

    def walk(self, folder: str = "") -> Iterator[list[Listed]]:
        yield [
            Listed(name, len(data), 0)
            for name, data in sorted(self.objects.items())
            if name.startswith(folder)
        ]

    def delete(self, names: list[str]) -> None:
        for name in names:
            self.objects.pop(name, None)


class MemoryPeers:
    """One host's transport; `sources` is shared by all hosts, by address."""

    def __init__(
        self, number: int, sources: dict[tuple[str, int], PageSource], arenas: MemoryArenas
    ) -> None:
        self._number = number
        self._sources = sources
        self._arenas = arenas

    def serve(self, source: PageSource) -> str:
        self._sources["peer", self._number] = source
        return f"peer:{self._number}"

    def connect(self, peer_id: HostId, address: tuple[str, int], report: PeerReport) -> PeerLink:
        return _MemoryLink(address, self._sources[address], self._arenas, report)

    def events(self) -> Counter[str]:
        return Counter()

    def stop(self) -> None:
        self._sources.pop(("peer", self._number), None)


@dataclass
class _MemoryLink:
    address: tuple[str, int]
    source: PageSource
    arenas: MemoryArenas
    report: PeerReport

    def submit(self, reads: Sequence[PageReads], priority: int, timeout_s: float) -> None:
        results = [self._read(each) for each in reads]
        asyncio.get_running_loop().call_later(READ_S, self.report, results, READ_S)

    def _read(self, reads: PageReads) -> PeerRead:
        arena = self.arenas.by_page_bytes[reads.page_bytes]
        outcomes: list[LoadOutcome] = []
        headers: list[bytes | None] = []
        with self.source.open() as pages:
            for key, page, generation in zip(
                reads.keys, reads.pages, reads.generations, strict=True
            ):
                found = pages.find(key, reads.layer, reads.page_bytes)
                if found is not None:
                    arena.pages[page] = np.frombuffer(found.parts[1], np.uint8)
                state = PageState.BAD if found is None else PageState.READY
                arena.set_word(page, generation, state)
                outcomes.append(LoadOutcome.MISSING if found is None else LoadOutcome.READY)
                headers.append(None if found is None else bytes(found.parts[0]))
        return PeerRead(reads, outcomes, headers)

    def stop(self) -> None:
        pass

    def events(self) -> Counter[str]:
        return Counter()


class NoAdapters:
    """A store of adapters without any."""

    def scan(self) -> Found:
        return Found([], {})


@dataclass
class Machine:
    """One host; what of it survives a restart of its kvstore."""

    number: int
    redis: MemoryRedis
    sources: dict[tuple[str, int], PageSource]
    bucket: MemoryBucket | None = None
    has_peers: bool = True
    disk: MemoryDisk = field(default_factory=MemoryDisk)

    def start(self, num_pages: int) -> "tuple[Ports, MemoryArenas, MemoryLeases]":
        """For one life of a kvstore."""
        arenas, leases = MemoryArenas(num_pages), MemoryLeases()
        adapters: Any = NoAdapters()
        ports = Ports(
            disk=self.disk,
            scan=self.disk.scan(),
            memory=arenas,
            leases=leases,
            redis=self.redis,
            objects=self.bucket,
            peers=MemoryPeers(self.number, self.sources, arenas) if self.has_peers else None,
            adapters=adapters,
            executors=LoopExecutor,
        )
        return ports, arenas, leases
