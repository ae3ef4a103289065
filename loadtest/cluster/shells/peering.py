"""What a host's kvstore asks of other hosts' kvstores: who has how much, and pages, over links that
are cut, by peers that are gone, damaged, or lie.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from loadtest.sim.arena import SimArena
from loadtest.sim.process import Process
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.timeline import MS
from services.kvstore.core import (
    FetchedPages,
    KvCore,
    PageReads,
    RemotePrefix,
    most_offered,
    sample_of,
)
from shared.blocks import BlockKey, pack_keys
from shared.ids import HostId
from shared.locations import ANYWHERE
from shared.wire import messages as m
from shared.wire.subjects import KV_LOCATE

LOCATE_NS = 30 * MS

Answers = dict[HostId, int]
OnOffer = Callable[[RemotePrefix | None], None]


class PeerHost(Process):
    """A kvstore, as far as others ask something of it, or what they gave comes to it."""

    deployment: SimDeployment

    core: KvCore
    host_id: HostId
    arena: SimArena

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
        raise NotImplementedError

    def _end(self, host_id: HostId, duration_ns: int) -> None:
        waiting = self._waiting[host_id]
        pages = [self._take(host_id, reads) for reads in waiting.popleft()]
        if waiting:
            self._begin(host_id)
        self._kvstore.on_fetched(host_id, pages, duration_ns)

    def _take(self, host_id: HostId, reads: PageReads) -> FetchedPages:
        raise NotImplementedError
