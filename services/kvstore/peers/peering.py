"""This host and the others: who is asked for history that is not here, and who brings it.

Where another host can be reached is told by its answer to a question over NATS; pages come over
TCP. Without a secret that all hosts share, none of this happens: turns whose history is elsewhere
compute it.
"""

import asyncio
import logging
import ssl
from collections import Counter, OrderedDict
from collections.abc import Callable
from ipaddress import ip_address

from services.kvstore.config import KvstoreConfig
from services.kvstore.core import (
    FetchedPages,
    KvCore,
    LoadOutcome,
    PageFacts,
    PageReads,
    RemotePrefix,
    most_offered,
    sample_of,
)
from services.kvstore.peers.client import PeerClient
from services.kvstore.peers.fetches import PeerRead
from services.kvstore.peers.server import PeerServer
from services.kvstore.peers.sources import ArenaPage, DiskSource
from services.kvstore.tiers.disk import Disk, DiskDamaged
from services.kvstore.tiers.memory.arenas import Arenas
from services.kvstore.tiers.values import ValueHeader, fingerprint_digest
from shared import messages as m
from shared.access import read_secret, serving, trusting
from shared.arena import PageState
from shared.blocks import KEY_BYTES, BlockKey, pack_keys
from shared.bus import Bus
from shared.clock import Clock
from shared.errors import ConfigError, SymphonyError
from shared.ids import HostId
from shared.locations import ANYWHERE
from shared.messages import ADVISORY_PRIORITY
from shared.subjects import KV_FIND, KV_LOCATE
from shared.urgency import DEMAND_PRIORITY
from shared.urls import join_address, split_address

log = logging.getLogger(__name__)

LOCATE_MIN_S, LOCATE_MAX_S = 0.03, 0.3  # for an answer to where history is
LOCATE_SHARE = 0.3  # of how long a turn waits for the answer to its stage
FIND_S = 0.05  # for all to say whether they have any of it
OTHERS_S = 0.005  # for those who might have more than the first who has some
FETCH_S = 3.0  # for a batch; who waits for it computes much sooner if that is faster
STOP_S = 5.0  # for what is being connected to
CLIENTS_MAX = 64  # hosts that are fetched from at a time, each with a thread
KEYS_SHARE = 2  # of a message's bytes that keys may take
_PRIORITIES = (DEMAND_PRIORITY, ADVISORY_PRIORITY + 1, ADVISORY_PRIORITY)  # by kind of urgency

OnFetched = Callable[[HostId, list[FetchedPages], int, bool], None]


class Peering:
    """A server, and a client for each host that has given something.

    Args:
        core: that decides.
        on_fetched: called in the event loop: from where, what came, how long it took, ns, and
            whether it was asked for where that host is reached now.
        on_damaged: called in any thread when the database cannot be used.
        fail: called in any thread with what ended it.

    Attributes:
        address: where others fetch; empty: nowhere.

    Raises, when made:
        ConfigError: it cannot listen, or a file cannot be read.
    """

    def __init__(
        self,
        config: KvstoreConfig,
        core: KvCore,
        disk: Disk,
        arenas: Arenas,
        bus: Bus,
        clock: Clock,
        on_fetched: OnFetched,
        on_damaged: Callable[[DiskDamaged], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._core = core
        self._arenas = arenas
        self._bus = bus
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._on_fetched = on_fetched
        self._fail = fail
        self._clients: OrderedDict[HostId, PeerClient] = OrderedDict()
        self._stopping: set[asyncio.Task[None]] = set()
        self._server: PeerServer | None = None
        self._secret = b""
        self._tls: ssl.SSLContext | None = None
        self._ended: Counter[str] = Counter()  # of clients that are no more
        self._is_closed = False
        self.address = ""
        if config.peer_secret_file is None:
            return
        self._secret = read_secret(config.peer_secret_file, "SYMPHONY_PEER_SECRET_FILE").encode()
        if config.peer_ca_file is not None:
            self._tls = trusting(config.peer_ca_file, "SYMPHONY_PEER_CA_FILE")
        self._server = self._listen(DiskSource(disk, on_damaged, self._find_written))
        host, port = self._server.address
        self.address = config.peer_address or join_address(host, port)
        if ip_address(host).is_loopback and config.peer_address is None:
            log.info("only kvstores on this machine can fetch here", extra={"at": self.address})

    async def offer(self, stage: m.KvStage, keys: list[BlockKey]) -> RemotePrefix | None:
        """Which host is to give what this one lacks of `keys`; None: none, as far as is known."""
        if self._server is None:
            return None
        keys = keys[: self._bus.payload_bytes_max // (KEYS_SHARE * 2 * KEY_BYTES)]
        hosts = self._core.whom_to_ask(
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
        num_blocks = self._core.on_locate(keys, question.num_layers, question.page_bytes)
        if not self.address:
            num_blocks = 0
        return m.KvLocated(
            host_id=self._config.host_id, num_blocks=num_blocks, address=self.address
        )

    def fetch(self, host_id: HostId, reads: list[PageReads]) -> None:
        """Bring these pages from there."""
        if (client := self._clients.get(host_id)) is None:  # there were too many
            self._loop.call_soon(self._give_up, host_id, reads)
            return
        self._clients.move_to_end(host_id)
        kind = min(each.kind for each in reads)
        client.submit(reads, _PRIORITIES[kind], FETCH_S)

    def counts(self) -> Counter[str]:
        """What happened so far, by name: events, and `bytes_sent` and `bytes_received`."""
        total = self._ended.copy()
        for client in self._clients.values():
            total += _counts_of(client)
        if self._server is not None:
            seen = self._server.counts
            total += Counter(
                refused=seen.num_refused, turned_away=seen.num_turned_away,
                cut_off=seen.num_cut_off, bytes_sent=seen.bytes_sent,
            )  # fmt: skip
        return total

    async def close(self) -> None:
        """Serve nobody any more; what is on its way comes to nothing."""
        self._is_closed = True
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        while self._clients:
            self._end(self._clients.popitem()[1])
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=STOP_S)

    def _listen(self, source: DiskSource) -> PeerServer:
        config = self._config
        tls = None
        if config.peer_cert_file is not None and config.peer_key_file is not None:
            tls = serving(config.peer_cert_file, config.peer_key_file, "SYMPHONY_PEER_CERT_FILE")
        try:
            return PeerServer(
                split_address(config.peer_listen), self._secret, source, self._fail,
                host_id=config.host_id, tls=tls, bytes_per_s=config.peer_bytes_per_s or None,
            )  # fmt: skip
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise ConfigError(
                f"SYMPHONY_PEER_LISTEN={config.peer_listen!r}: {why or error}"
            ) from None

    async def _find(self, stage: m.KvStage, keys: list[BlockKey]) -> list[HostId]:
        """Whom to ask for what nobody could tell where it is."""
        finding, now_ns = self._core.finding, self._clock.now_ns()
        if not finding.may_ask(now_ns):
            return []
        finding.on_question(now_ns)  # it is heard here, too, but behind others that are asked now
        sample = sample_of(keys)
        answers = await self._bus.gather(
            KV_FIND,
            _question(stage, sample),
            timeout_s=FIND_S,
            until=lambda told: finding.is_enough(
                told[-1].host_id, told[-1].num_blocks, len(sample)
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
                break  # the others answer, or fail, for themselves
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
            self._core.peers.on_failed(host_id, self._clock.now_ns())
            return None
        if answer.num_blocks > 0 and not self._is_closed:
            self._connect(host_id, address)
        return host_id, answer.num_blocks

    def _connect(self, host_id: HostId, address: tuple[str, int]) -> None:
        """Have a client of the kvstore there; it may have been started again, elsewhere."""
        client = self._clients.get(host_id)
        if client is not None and client.address == address:
            return
        if client is not None:
            self._end(self._clients.pop(host_id))
        if len(self._clients) >= CLIENTS_MAX:
            self._end(self._clients.popitem(last=False)[1])

        def report(results: list[PeerRead], seconds: float) -> None:
            self._loop.call_soon_threadsafe(
                lambda: self._on_report(host_id, made, results, seconds)
            )

        made = self._clients[host_id] = PeerClient(
            address, self._secret, self._arenas.by_page_bytes, report, self._fail,
            host_id=self._config.host_id, peer_id=host_id, tls=self._tls,
        )  # fmt: skip

    def _end(self, client: PeerClient) -> None:
        """What it was asked for has failed."""
        self._ended += _counts_of(client)
        task = asyncio.ensure_future(asyncio.to_thread(client.stop))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def _on_report(
        self, host_id: HostId, client: PeerClient, results: list[PeerRead], seconds: float
    ) -> None:
        pages = [
            FetchedPages(each.reads, each.outcomes, [_told(header) for header in each.headers])
            for each in results
        ]
        is_current = self._clients.get(host_id) is client
        self._on_fetched(host_id, pages, int(seconds * 1e9), is_current)

    def _give_up(self, host_id: HostId, reads: list[PageReads]) -> None:
        for each in reads:
            arena = self._arenas.by_page_bytes[each.page_bytes]
            arena.set_words(each.pages, each.generations, PageState.BAD)
        num_pages = [len(each.pages) for each in reads]
        failed = [
            FetchedPages(each, [LoadOutcome.FAILED] * num, [None] * num)
            for each, num in zip(reads, num_pages, strict=True)
        ]
        self._on_fetched(host_id, failed, 0, False)

    def _find_written(self, key: BlockKey, layer: int) -> ArenaPage | None:
        """A page that is on its way to the disk; in the threads that serve."""
        write = self._core.find_written(key)
        if write is None or layer >= len(write.pages):
            return None
        arena = self._arenas.by_page_bytes[write.page_bytes]
        page = write.pages[layer]
        generation, state = arena.word(page)
        if state is not PageState.READY or self._core.find_written(key) is not write:
            return None  # it has been written, and the page may be another's
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
    """How long others may take to answer: who asked has to be answered in time himself."""
    if not stage.patience_ms:
        return LOCATE_MAX_S
    return min(max(LOCATE_SHARE * stage.patience_ms / 1e3, LOCATE_MIN_S), LOCATE_MAX_S)


def _counts_of(client: PeerClient) -> Counter[str]:
    seen = client.counts
    return Counter(
        connected=seen.num_connections, broken=seen.num_broken, lied=seen.num_refused,
        corrupt=seen.num_corrupt, resumed=seen.num_resumed, late=seen.num_late,
        bytes_received=seen.bytes_received,
    )  # fmt: skip


def _told(header: ValueHeader | None) -> PageFacts | None:
    if header is None:
        return None
    return PageFacts(
        header.parent, list(header.tokens), header.num_layers, header.checksum, header.owner
    )
