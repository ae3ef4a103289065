"""Pages from host to host in the simulation: links that are cut, peers that are gone, or lie."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Protocol

import numpy as np

from loadtest.sim.bucket import other_header
from loadtest.sim.threads import Pool, Threads, wait_ns
from loadtest.sim.timeline import MS, SECOND, US
from services.kvstore.core import LoadOutcome, PageReads
from services.kvstore.peers.fetches import PeerRead, PeerReport
from services.kvstore.peers.sources import PageSource, SourcePage
from services.kvstore.tiers.disk import DiskFailed
from services.kvstore.tiers.values import BadValue, read_name
from shared.arena import ArenaView, PageState, checksum
from shared.ids import HostId

FETCH_NS = 2 * MS  # a page, at most
TRANSFER_NS = 100 * US  # of its bytes, at most
RETRY_NS = 100 * MS  # of a connection

Address = tuple[str, int]


class PeerHost(Protocol):
    """A host, as others see it.

    Attributes:
        is_link_cut: no pages come from other hosts now, nor go there.
        is_lying: what it says of its pages is wrong now.
        served: where its pages are, by the life of its kvstore; of lives that are over nothing.
    """

    is_link_cut: bool
    is_lying: bool
    served: dict[int, PageSource]

    @property
    def host_id(self) -> HostId: ...
    @property
    def life(self) -> int: ...
    @property
    def is_frozen(self) -> bool: ...


class SimTransport:
    """One life's `PeerTransport`.

    Args:
        hosts: all of them.
        arenas: by page size in bytes.
        fail: called with what must not have happened.
    """

    def __init__(
        self,
        host: PeerHost,
        hosts: Mapping[HostId, PeerHost],
        arenas: Mapping[int, ArenaView],
        threads: Threads,
        random: Random,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._host = host
        self._life = host.life
        self._hosts = hosts
        self._arenas = arenas
        self._threads = threads
        self._random = random
        self._fail = fail

    def serve(self, source: PageSource) -> str:
        self._host.served[self._life] = source
        return f"{self._host.host_id}:{self._life}"

    def connect(
        self,
        peer_id: HostId,
        address: Address,
        report: PeerReport,
        arenas: Mapping[int, ArenaView] | None = None,
    ) -> "SimLink":
        assert arenas is None, "no files travel here"
        del peer_id
        pool = Pool(self._threads, 1, self._fail)
        return SimLink(address, self, pool, report)

    def events(self) -> Counter[str]:
        return Counter()

    def stop(self) -> None:
        self._host.served.pop(self._life, None)

    @property
    def now_ns(self) -> int:
        return self._threads.host.now_ns

    def wait_ns(self, most_ns: int) -> None:
        """In a thread: let up to so much time pass."""
        wait_ns(self._random.randrange(most_ns) + 1)

    def arena(self, page_bytes: int) -> ArenaView:
        return self._arenas[page_bytes]

    def peer_at(self, address: Address) -> PeerHost | None:
        """Who answers there now."""
        name, life = address
        peer = self._hosts.get(HostId(name))
        if peer is None or peer.life != life or life not in peer.served:
            return None
        is_away = peer.is_link_cut or self._host.is_link_cut or peer.is_frozen
        return None if is_away else peer


class SimLink:
    """Fetches from one life of a peer, one order after the other."""

    def __init__(
        self, address: Address, transport: SimTransport, pool: Pool, report: PeerReport
    ) -> None:
        self.address = address
        self._transport = transport
        self._pool = pool
        self._report = report
        self._is_stopped = False

    def submit(self, reads: Sequence[PageReads], timeout_s: float) -> None:
        until_ns = self._transport.now_ns + round(timeout_s * SECOND)
        self._pool.submit(partial(self._fetch, reads, until_ns))

    def stop(self) -> None:
        self._is_stopped = True
        self._pool.stop()

    def events(self) -> Counter[str]:
        return Counter()

    def _fetch(self, reads: Sequence[PageReads], until_ns: int) -> None:
        begun_at_ns = self._transport.now_ns
        results = [self._read(each, until_ns) for each in reads]
        self._report(results, (self._transport.now_ns - begun_at_ns) / SECOND)

    def _read(self, reads: PageReads, until_ns: int) -> PeerRead:
        arena = self._transport.arena(reads.page_bytes)
        outcomes: list[LoadOutcome] = []
        headers: list[bytes | None] = []
        for at, (page, generation) in enumerate(zip(reads.pages, reads.generations, strict=True)):
            outcome, header = self._read_page(reads, at, until_ns)
            state = PageState.READY if outcome is LoadOutcome.READY else PageState.BAD
            arena.set_word(page, generation, state)
            outcomes.append(outcome)
            headers.append(header if outcome is LoadOutcome.READY else None)
        return PeerRead(reads, outcomes, headers)

    def _read_page(
        self, reads: PageReads, at: int, until_ns: int
    ) -> tuple[LoadOutcome, bytes | None]:
        """Ask until there is an answer, as over a connection that is made again."""
        transport = self._transport
        while not self._is_stopped and transport.now_ns < until_ns:
            transport.wait_ns(FETCH_NS)
            peer = transport.peer_at(self.address)
            if peer is None:
                transport.wait_ns(RETRY_NS)
                continue
            key = reads.keys[at]
            try:
                with _found(peer.served[peer.life], key, reads) as found:
                    if found is None:
                        return LoadOutcome.MISSING, None
                    header = bytes(found.parts[0])
                    memory = transport.arena(reads.page_bytes).pages[reads.pages[at]]
                    memory[:] = np.frombuffer(found.parts[1], np.uint8)
                    transport.wait_ns(TRANSFER_NS)
                    if transport.peer_at(self.address) is not peer:
                        continue
                    if found.is_valid is not None and not found.is_valid():
                        return LoadOutcome.MISSING, None
            except DiskFailed:
                return LoadOutcome.FAILED, None
            if peer.is_lying:
                header = other_header(header)
            try:
                name = read_name(header)
            except BadValue:
                return LoadOutcome.CORRUPT, None
            assert name[:3] == (key, reads.layer, reads.page_bytes), "another page than was asked"
            is_good = checksum(memory.data) == name.checksum
            return (LoadOutcome.READY, header) if is_good else (LoadOutcome.CORRUPT, None)
        return LoadOutcome.FAILED, None


@contextmanager
def _found(source: PageSource, key: bytes, reads: PageReads) -> Iterator[SourcePage | None]:
    with source.open() as pages:
        yield pages.find(key, reads.layer, reads.page_bytes)  # type: ignore[arg-type]
