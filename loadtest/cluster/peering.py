"""What a host's kvstore asks of other hosts' kvstores: who has how much, and pages, over links that
are cut, by peers that are gone, damaged, or lie.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from loadtest.sim.arena import SimArena
from loadtest.sim.timeline import MS
from loadtest.world.deployment import SimDeployment
from loadtest.world.memory import Content
from loadtest.world.process import Process
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
from shared.arena import PageState
from shared.blocks import BlockKey, pack_keys
from shared.ids import HostId
from shared.locations import ANYWHERE
from shared.owners import OwnerKey
from shared.wire import messages as m
from shared.wire.subjects import KV_LOCATE

LOCATE_NS = 30 * MS
FETCH_NS = 2 * MS  # a page, at most
TIMEOUT_NS = 20 * MS  # of a fetch over a link that is cut

Answers = dict[HostId, int]
OnOffer = Callable[[RemotePrefix | None], None]


class Page(NamedTuple):
    """A page that a kvstore has, and what it knows of its block."""

    content: Content
    num_layers: int
    parent: BlockKey
    owner: OwnerKey
    is_damaged: bool = False


class PeerHost(Process):
    """A kvstore, as far as others ask something of it, or what they gave comes to it.

    Attributes:
        is_link_cut: no pages come from other hosts now, nor go there.
    """

    deployment: SimDeployment

    core: KvCore
    host_id: HostId
    arena: SimArena
    is_link_cut: bool

    def page_of(self, key: BlockKey, layer: int) -> Page | None:
        """What is on disk, or on its way there."""
        raise NotImplementedError

    def tell_of(self, page: Page) -> PageFacts:
        """What goes with a page."""
        raise NotImplementedError

    def on_fetched(self, host_id: HostId, pages: list[FetchedPages], duration_ns: int) -> None:
        """Another host's pages came, or did not."""
        raise NotImplementedError


class Peering:
    """One kvstore's side, for one life of it.

    Attributes:
        others: kvstores of the deployment, itself included.
    """

    def __init__(self, kvstore: PeerHost, others: Mapping[HostId, PeerHost]) -> None:
        self._kvstore = kvstore
        self._others = others
        self._waiting: dict[HostId, deque[list[PageReads]]] = {}

    def locate(self, message: m.KvStage, keys: list[BlockKey], then: OnOffer) -> None:
        """Which peers have more of this sequence; answered once all have replied or timed out."""
        kvstore = self._kvstore
        core = kvstore.core
        if not kvstore.deployment.has_peers:
            then(None)
            return
        hosts = core.whom_to_ask(
            keys, message.num_before, message.page_bytes, message.kv_at, kvstore.now_ns
        )

        def finish(answers: Answers) -> None:
            best = most_offered(answers.items(), 0)
            then(None if best is None else RemotePrefix(*best))

        def ask(hosts: list[HostId]) -> None:
            def on_failed(host_id: HostId) -> None:
                core.peers.on_failed(host_id, kvstore.now_ns)

            self._ask(hosts, message, keys, on_failed, finish)

        def on_found(answers: Answers) -> None:
            ask(core.finding.worth_asking(answers.items()))

        if hosts != [ANYWHERE]:
            ask(hosts)
        elif core.finding.may_ask(kvstore.now_ns):
            everybody = [*self._others]
            self._ask(everybody, message, sample_of(keys), lambda host_id: None, on_found)
        else:
            then(None)

    def _ask(
        self,
        hosts: list[HostId],
        message: m.KvStage,
        keys: list[BlockKey],
        on_failed: Callable[[HostId], None],
        then: Callable[[Answers], None],
    ) -> None:
        """How much of these blocks they have, as far as they answer."""
        kvstore, answers = self._kvstore, Answers()
        open_hosts = set(hosts)

        def on_answer(host_id: HostId, answer: object) -> None:
            open_hosts.discard(host_id)
            if isinstance(answer, m.KvLocated):
                answers[host_id] = answer.num_blocks
            else:
                on_failed(host_id)
            if not open_hosts:
                then(answers)

        if not hosts:
            then(answers)
        question = m.KvLocate(
            keys=pack_keys(keys), num_layers=message.num_layers, page_bytes=message.page_bytes
        )
        for host_id in hosts:
            kvstore.deployment.wires.request(
                kvstore, KV_LOCATE, question, partial(on_answer, host_id),
                partial(on_answer, host_id), ident=host_id, timeout_ns=LOCATE_NS,
            )  # fmt: skip

    def fetch(self, host_id: HostId, reads: list[PageReads]) -> None:
        """Pages from there, batch after batch."""
        waiting = self._waiting.setdefault(host_id, deque())
        waiting.append(reads)
        if len(waiting) == 1:
            self._begin(host_id)

    def _begin(self, host_id: HostId) -> None:
        kvstore = self._kvstore
        num_pages = sum(len(reads.pages) for reads in self._waiting[host_id][0])
        most_ns = FETCH_NS * num_pages if self._is_linked(host_id) else TIMEOUT_NS
        duration_ns = kvstore.deployment.random.randrange(most_ns) + 1
        kvstore.later(duration_ns, partial(self._end, host_id, duration_ns))

    def _end(self, host_id: HostId, duration_ns: int) -> None:
        waiting = self._waiting[host_id]
        pages = [self._take(host_id, reads) for reads in waiting.popleft()]
        if waiting:
            self._begin(host_id)
        self._kvstore.on_fetched(host_id, pages, duration_ns)

    def _is_linked(self, host_id: HostId) -> bool:
        other = self._others[host_id]
        return other.is_up and not (other.is_link_cut or self._kvstore.is_link_cut)

    def _take(self, host_id: HostId, reads: PageReads) -> FetchedPages:
        taken = [self._take_page(host_id, reads, at) for at in range(len(reads.pages))]
        arena = self._kvstore.arena
        for page, generation, (outcome, _) in zip(
            reads.pages, reads.generations, taken, strict=True
        ):
            is_good = outcome is LoadOutcome.READY
            arena.set_word(page, generation, PageState.READY if is_good else PageState.BAD)
        return FetchedPages(reads, [outcome for outcome, _ in taken], [facts for _, facts in taken])

    def _take_page(
        self, host_id: HostId, reads: PageReads, at: int
    ) -> tuple[LoadOutcome, PageFacts | None]:
        if not self._is_linked(host_id):
            return LoadOutcome.FAILED, None
        other = self._others[host_id]
        if (page := other.page_of(reads.keys[at], reads.layer)) is None:
            return LoadOutcome.MISSING, None
        if page.is_damaged:
            return LoadOutcome.CORRUPT, None
        self._kvstore.arena.put(reads.pages[at], page.content)
        return LoadOutcome.READY, other.tell_of(page)
