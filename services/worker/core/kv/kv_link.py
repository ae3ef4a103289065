"""One model's connection to the kvstore of its host: what is asked of it, and which answers count.

A worker that cannot be sure that the kvstore got everything opens again, as a new incarnation:
that gives back whatever the old one held. What was promised to the old one means nothing from then
on; the epoch tells them apart.
"""

from dataclasses import dataclass, field, replace
from itertools import islice

from services.worker.core.effects import BlockWrite, StageImage, StageSession, StageTurn
from services.worker.core.kv.answers import leased_pages, source_speed, staged_blocks
from services.worker.core.kv.staged import Staged
from shared.blocks import BlockKey, pack_keys
from shared.errors import NoCapacity, SymphonyError
from shared.ids import DEFAULT_TENANT, HostId, SessionId, TenantId, WorkerId
from shared.locations import ANYWHERE
from shared.wire.messages import (
    KvBlock,
    KvCommit,
    KvLease,
    KvLeased,
    KvOpen,
    KvRelease,
    KvRenew,
    KvRenewed,
    KvStage,
    KvStaged,
    pack_ints,
)
from shared.wire.urgency import DEMAND_PRIORITY

PEERS_MAX = 1024  # hosts of which it is remembered how fast they were


@dataclass(slots=True)
class KvLink:
    """Makes the calls and judges the answers. Every call belongs to the epoch it was made in.

    Attributes:
        epoch: counts connections; pages and tickets of an earlier one mean nothing any more.
        is_open: the kvstore knows us, as far as we know.
    """

    worker_id: WorkerId
    fingerprint: str
    num_layers: int
    page_bytes: int
    epoch: int = 0
    is_open: bool = False
    _incarnation: str = ""
    _num_arena_pages: int = 0
    _tickets: set[int] = field(default_factory=set)  # what the core was given and has not released
    _leased: set[int] = field(default_factory=set)  # nor committed
    _seq: int = 0
    _num_leases: int = 0
    _num_leases_acked: int = 0

    def open(self, incarnation: str) -> KvOpen:
        """Introduce ourselves, as a new incarnation each time: a call of ours that the kvstore
        hears late must not hold anything.
        """
        return KvOpen(
            worker_id=self.worker_id,
            incarnation=incarnation,
            fingerprint=self.fingerprint,
            num_layers=self.num_layers,
            page_bytes=self.page_bytes,
        )

    def on_opened(self, incarnation: str, num_arena_pages: int) -> None:
        """The kvstore knows us under this incarnation: a new epoch begins."""
        self._incarnation = incarnation
        self._num_arena_pages = num_arena_pages
        self._tickets.clear()
        self._leased.clear()
        self.epoch += 1
        self.is_open = True

    def on_error(self, error: SymphonyError, epoch: int) -> bool:
        """A call of this epoch failed; whether the connection is lost by that, and was not before.

        A kvstore that answers that it has no room is there. After any other failure it is
        unknown what it got.
        """
        has_answered = isinstance(error, NoCapacity) and error.code == NoCapacity.code
        if has_answered or epoch != self.epoch or not self.is_open:
            return False
        self.is_open = False
        return True

    def renew(self, used: list[BlockKey]) -> KvRenew:
        """Tell that we are alive, which tickets and leased pages we still hold, and what was used
        of blocks that it has."""
        return KvRenew(
            worker_id=self.worker_id,
            incarnation=self._incarnation,
            tickets=pack_ints(sorted(self._tickets), "Q"),
            page_bytes=self.page_bytes,
            leased=pack_ints(sorted(self._leased)),
            heard=self._num_leases_acked,
            used=pack_keys(used),
        )

    def on_renewed(self, reply: KvRenewed) -> tuple[float, dict[HostId, float]]:
        """How fast pages come into the arena lately, bytes/s, 0: unknown; and from other hosts.

        Raises:
            MalformedMessage: it is no speed.
        """
        peers = {
            host_id: source_speed(bytes_per_s)
            for host_id, bytes_per_s in islice(reply.peer_bytes_per_s.items(), PEERS_MAX)
        }
        return source_speed(reply.source_bytes_per_s), peers

    def lease(self, num_pages: int) -> KvLease:
        """Ask for arena pages to write into; one question at a time."""
        self._num_leases += 1
        return KvLease(
            worker_id=self.worker_id,
            incarnation=self._incarnation,
            page_bytes=self.page_bytes,
            num_pages=num_pages,
            number=self._num_leases,
        )

    def on_leased(self, reply: KvLeased, epoch: int) -> list[int] | None:
        """The pages of a lease of this epoch; None if the epoch is over: they went with it.

        Raises:
            MalformedMessage: its pages cannot be pages of the arena.
        """
        if epoch != self.epoch:
            return None
        self._num_leases_acked = self._num_leases
        pages = leased_pages(reply, self._num_arena_pages)
        self._leased.update(pages)
        return pages

    def stage(self, keys: list[BlockKey]) -> KvStage:
        """Bring blocks that a turn waits for into the arena."""
        return self._stage(pack_keys(keys), None, DEFAULT_TENANT, DEMAND_PRIORITY)

    def stage_turn(self, effect: StageTurn) -> KvStage:
        """Bring a waiting turn's history into the arena."""
        return replace(
            self.stage(effect.keys),
            request_id=effect.request_id,
            tenant=effect.tenant,
            session_id=effect.session_id,
            kv_at=dict(effect.kv_at),
            num_before=effect.num_before,
            patience_ms=effect.patience_ns // 1_000_000,
            trace=effect.trace,
        )

    def stage_image(self, effect: StageImage, *, is_far: bool) -> KvStage:
        """Bring an adapter's image into the arena; `is_far`: from any host that has it."""
        kv_at = {ANYWHERE: len(effect.keys)} if is_far else {}
        stage = replace(self.stage(effect.keys), kv_at=kv_at)
        if effect.expected_by is None:
            return stage
        return replace(stage, tenant=effect.expected_by, is_hint=True)

    def stage_session(self, effect: StageSession) -> KvStage:
        """Bring an expected session's blocks into the arena."""
        keys = pack_keys(effect.keys)
        stage = self._stage(keys, effect.session_id, effect.tenant, effect.priority)
        return replace(stage, is_hint=True, kv_at=dict(effect.kv_at), trace=effect.trace)

    def on_staged(self, reply: KvStaged, keys: list[BlockKey] | None, epoch: int) -> Staged | None:
        """What a stage of this epoch brought; None if the epoch is over: its ticket went with it.

        Args:
            keys: that were asked for; None: a session was.

        Raises:
            MalformedMessage: the answer contradicts itself or the question; its ticket is to be
                released.
        """
        if epoch != self.epoch:
            return None
        staged = staged_blocks(
            reply,
            keys,
            num_layers=self.num_layers,
            num_arena_pages=self._num_arena_pages,
            epoch=epoch,
        )
        if reply.ticket:
            self._tickets.add(reply.ticket)
        return staged

    def release(
        self, ticket: int = 0, pages: list[int] | None = None, num_kept: int = 0
    ) -> KvRelease:
        """Unpin a stage, but for its first `num_kept` blocks; give leased pages back."""
        if not num_kept:
            self._tickets.discard(ticket)
        self._leased.difference_update(pages or ())
        return KvRelease(
            worker_id=self.worker_id,
            incarnation=self._incarnation,
            ticket=ticket,
            num_kept=num_kept,
            page_bytes=self.page_bytes,
            pages=pack_ints(pages or []),
            seq=self._next_seq(),
            heard=self._num_leases_acked,
        )

    def commit(self, writes: list[BlockWrite], checksums: list[list[int]]) -> KvCommit:
        """Hand new blocks over, and with them their pages."""
        for write in writes:
            self._leased.difference_update(write.arena_pages)
        blocks = [
            KvBlock(
                key=write.key.hex(),
                parent=write.parent.hex(),
                tokens=pack_ints(write.tokens),
                pages=pack_ints(write.arena_pages),
                checksums=pack_ints(sums, "Q"),
                owner=write.owner.hex(),
                replaces=write.replaces.hex(),
                expiry_s=write.expiry_s,
            )
            for write, sums in zip(writes, checksums, strict=True)
        ]
        return KvCommit(
            worker_id=self.worker_id,
            incarnation=self._incarnation,
            fingerprint=self.fingerprint,
            page_bytes=self.page_bytes,
            blocks=blocks,
            seq=self._next_seq(),
            heard=self._num_leases_acked,
        )

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _stage(
        self, keys: str, session_id: SessionId | None, tenant: TenantId, priority: int
    ) -> KvStage:
        return KvStage(
            worker_id=self.worker_id,
            incarnation=self._incarnation,
            fingerprint=self.fingerprint,
            num_layers=self.num_layers,
            page_bytes=self.page_bytes,
            keys=keys,
            session_id=session_id,
            tenant=tenant,
            priority=priority,
        )
