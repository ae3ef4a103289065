"""This host and the others: which host is asked for history that is not here, and which serves it.

A host's answer over NATS contains the address where its pages are served, over TCP. Without a
secret that all hosts share, nothing is exchanged: turns whose history is elsewhere compute it.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from services.kvstore.core import (
    Exchange,
    FetchedPages,
    LoadOutcome,
    PageFacts,
    PageReads,
    RemotePrefix,
    most_offered,
    sample_of,
)
from services.kvstore.peers.fetches import PeerRead
from services.kvstore.peers.sources import ArenaPage, DiskSource
from services.kvstore.peers.transport import PeerLink, PeerTransport
from services.kvstore.tiers.disk import BlockStore, DiskDamaged
from services.kvstore.tiers.values import ValueHeader, fingerprint_digest
from shared.arena import ArenaView, PageState
from shared.blocks import KEY_BYTES, BlockKey, pack_keys
from shared.bus import Bus
from shared.errors import SymphonyError
from shared.ids import HostId
from shared.locations import ANYWHERE
from shared.runtime.clock import Clock
from shared.runtime.urls import split_address
from shared.wire import messages as m
from shared.wire.subjects import KV_FIND, KV_LOCATE

log = logging.getLogger(__name__)

LOCATE_MIN_S, LOCATE_MAX_S = 0.03, 0.3  # for an answer to where history is
LOCATE_SHARE = 0.3  # of how long a turn waits for the answer to its stage
FIND_S = 0.05  # for all to say whether they have any of it
OTHERS_S = 0.005  # for hosts that might have more than the first that has some
FETCH_S = 3.0  # for a batch; turns that wait for it compute much sooner if that is faster
STOP_S = 5.0  # for what is being connected to
CLIENTS_MAX = 64  # hosts that are fetched from at a time, each with some threads
KEYS_SHARE = 2  # of a message's bytes that keys may take

OnFetched = Callable[[HostId, list[FetchedPages], int, bool], None]


@dataclass(frozen=True, slots=True)
class PeerEvents:
    """Attributes:
    fetched: called in the event loop: from which host, what came, how long it took, ns, and
        whether it was requested from that host's present address.
    damaged: called in any thread when the database cannot be used.
    """

    fetched: OnFetched
    damaged: Callable[[DiskDamaged], None]


class Peering:
    """Serves this host's pages, and has a link to each host that has given something.

    Args:
        transport: None: nothing is exchanged.
        exchange: decides.
        arenas: by page size in bytes.

    Attributes:
        address: where others fetch; empty: nowhere.

    Raises, when made:
        ConfigError: it cannot listen.
    """

    def __init__(
        self,
        transport: PeerTransport | None,
        exchange: Exchange,
        disk: BlockStore,
        arenas: Mapping[int, ArenaView],
        bus: Bus,
        clock: Clock,
        events: PeerEvents,
    ) -> None:
        self._transport = transport
        self._exchange = exchange
        self._arenas = arenas
        self._bus = bus
        self._clock = clock
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._links: OrderedDict[HostId, PeerLink] = OrderedDict()
        self._stopping: set[asyncio.Task[None]] = set()
        self._ended: Counter[str] = Counter()  # events of links that were stopped
        self._is_closed = False
        self.address = ""
        if transport is not None:
            source = DiskSource(disk, events.damaged, self._find_written)
            self.address = transport.serve(source)

    async def offer(self, stage: m.KvStage, keys: list[BlockKey]) -> RemotePrefix | None:
        """Which host is to give what this one lacks of `keys`; None: none, as far as is known."""
        if self._transport is None:
            return None
        keys = keys[: self._bus.payload_bytes_max // (KEYS_SHARE * 2 * KEY_BYTES)]
        hosts = self._exchange.whom_to_ask(
            keys, stage.num_before, stage.page_bytes, stage.kv_at, self._clock.now_ns()
        )
        if hosts == [ANYWHERE]:
            hosts = await self._find(stage, keys)
        if not hosts:
            return None
        question = _question(stage, keys)
        best = most_offered(await self._ask_all(hosts, question, patience_s(stage)), 0)
        return None if best is None else RemotePrefix(*best)

    def answer(self, question: m.KvLocate, keys: list[BlockKey]) -> m.KvLocated:
        """How much of that can be fetched here."""
        num_blocks = self._exchange.on_locate(keys, question.num_layers, question.page_bytes)
        return m.KvLocated(
            host_id=self._exchange.host_id,
            num_blocks=num_blocks if self.address else 0,
            address=self.address,
        )

    def on_question(self) -> None:
        """A host asked all hosts, perhaps this one did."""
        self._exchange.finding.on_question(self._clock.now_ns())

    def fetch(self, host_id: HostId, reads: list[PageReads]) -> None:
        """Load these pages from there."""
        if (link := self._links.get(host_id)) is None:  # there were too many
            self._loop.call_soon(self._give_up, host_id, reads)
            return
        self._links.move_to_end(host_id)
        link.submit(reads, FETCH_S)

    def counts(self) -> Counter[str]:
        """What happened so far, by name: events, and `bytes_sent` and `bytes_received`."""
        total = self._ended.copy()
        for link in self._links.values():
            total += link.events()
        if self._transport is not None:
            total += self._transport.events()
        return total

    async def close(self) -> None:
        """Serve no more, and abandon what is in flight."""
        self._is_closed = True
        if self._transport is not None:
            await asyncio.to_thread(self._transport.stop)
        while self._links:
            self._end(self._links.popitem()[1])
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=STOP_S)

    async def _find(self, stage: m.KvStage, keys: list[BlockKey]) -> list[HostId]:
        """Hosts to ask, if no location is known."""
        finding, now_ns = self._exchange.finding, self._clock.now_ns()
        if not finding.may_ask(now_ns):
            return []
        finding.on_question(now_ns)  # it arrives here, too, but after others that are asked now
        sample = sample_of(keys)
        answers = await self._bus.gather(
            KV_FIND,
            _question(stage, sample),
            timeout_s=FIND_S,
            until=lambda replies: finding.is_enough(
                replies[-1].host_id, replies[-1].num_blocks, len(sample)
            ),
        )
        return finding.worth_asking((answer.host_id, answer.num_blocks) for answer in answers)

    async def _ask_all(
        self, hosts: list[HostId], question: m.KvLocate, patience_s: float
    ) -> list[tuple[HostId, int]]:
        """What they have. Once one has something, the others are waited for only a little."""
        asked = {
            asyncio.ensure_future(self._ask(host_id, question, patience_s)) for host_id in hosts
        }
        answers: list[tuple[HostId, int]] = []
        left_s: float | None = None
        while asked:
            done, asked = await asyncio.wait(
                asked, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break  # the other tasks end by themselves
            answers += [answer for task in done if (answer := task.result()) is not None]
            if any(num_blocks for _, num_blocks in answers):
                left_s = OTHERS_S
        return answers

    async def _ask(
        self, host_id: HostId, question: m.KvLocate, patience_s: float
    ) -> tuple[HostId, int] | None:
        try:
            answer = await self._bus.request(
                KV_LOCATE, question, host_id, timeout_s=patience_s, grace_s=0.0
            )
            if not answer.address:
                return None
            address = split_address(answer.address)
        except (SymphonyError, ValueError) as error:
            log.info("a host does not say what it has", extra={"peer": host_id, "why": str(error)})
            self._exchange.on_no_answer(host_id, self._clock.now_ns())
            return None
        if answer.num_blocks > 0 and not self._is_closed:
            self._connect(host_id, address)
        return host_id, answer.num_blocks

    def _connect(self, host_id: HostId, address: tuple[str, int]) -> None:
        """Have a link to the kvstore there; it may have been restarted at another address."""
        assert self._transport is not None, "only then is anything located"
        link = self._links.get(host_id)
        if link is not None and link.address == address:
            return
        if link is not None:
            self._end(self._links.pop(host_id))
        if len(self._links) >= CLIENTS_MAX:
            self._end(self._links.popitem(last=False)[1])

        def report(results: list[PeerRead], seconds: float) -> None:
            self._loop.call_soon_threadsafe(
                partial(self._on_report, host_id, made, results, seconds)
            )

        made = self._links[host_id] = self._transport.connect(host_id, address, report)

    def _end(self, link: PeerLink) -> None:
        """What it was asked for has failed."""
        self._ended += link.events()
        task = asyncio.ensure_future(asyncio.to_thread(link.stop))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def _on_report(
        self, host_id: HostId, link: PeerLink, results: list[PeerRead], seconds: float
    ) -> None:
        pages = [
            FetchedPages(each.reads, each.outcomes, [_facts(header) for header in each.headers])
            for each in results
        ]
        is_current = self._links.get(host_id) is link
        self._events.fetched(host_id, pages, int(seconds * 1e9), is_current)

    def _give_up(self, host_id: HostId, reads: list[PageReads]) -> None:
        for each in reads:
            arena = self._arenas[each.page_bytes]
            arena.set_words(each.pages, each.generations, PageState.BAD)
        num_pages = [len(each.pages) for each in reads]
        failed = [
            FetchedPages(each, [LoadOutcome.FAILED] * num, [None] * num)
            for each, num in zip(reads, num_pages, strict=True)
        ]
        self._events.fetched(host_id, failed, 0, False)

    def _find_written(self, key: BlockKey, layer: int) -> ArenaPage | None:
        """A page that is being written to the disk; in the threads that serve."""
        write = self._exchange.find_written(key)
        if write is None or layer >= len(write.pages):
            return None
        arena = self._arenas[write.page_bytes]
        page = write.pages[layer]
        generation, state = arena.word(page)
        if state is not PageState.READY or self._exchange.find_written(key) is not write:
            return None  # it has been written, and the page may have been given away
        header = ValueHeader(
            write.key, write.parent, fingerprint_digest(write.fingerprint), layer,
            len(write.pages), write.page_bytes, 0, write.tokens, write.checksums[layer],
            write.owner,
        )  # fmt: skip

        def is_valid() -> bool:
            return arena.promise(page, generation) is PageState.READY

        return ArenaPage(arena.pages[page], header, is_valid)


def _question(stage: m.KvStage, keys: list[BlockKey]) -> m.KvLocate:
    return m.KvLocate(
        keys=pack_keys(keys), num_layers=stage.num_layers, page_bytes=stage.page_bytes
    )


def patience_s(stage: m.KvStage) -> float:
    """How long other hosts may take to answer: the stage has to be answered in time itself."""
    if not stage.patience_ms:
        return LOCATE_MAX_S
    return min(max(LOCATE_SHARE * stage.patience_ms / 1e3, LOCATE_MIN_S), LOCATE_MAX_S)


def _facts(header: ValueHeader | None) -> PageFacts | None:
    if header is None:
        return None
    return PageFacts(
        header.parent, list(header.tokens), header.num_layers, header.checksum, header.owner
    )
