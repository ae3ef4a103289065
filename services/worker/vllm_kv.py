"""KV beyond vLLM's cache: its connectors on one side, the kvstore of the host on the other.

The connectors decide what is loaded and stored, and copy pages; this owns the connection to the
kvstore, as `EngineRunner` does for our own engine.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace

from services.worker.core.effects import BlockWrite, StageTurn
from services.worker.core.engine_limits import Estimates
from services.worker.core.kv.staged import Staged
from services.worker.core.turns.history import PROMISE_UNKNOWN_NS
from services.worker.core.turns.turn import Turn
from services.worker.core.vllm import messages as m
from services.worker.core.vllm.replies import CachedTokens
from services.worker.kv_client import KvClient, KvHooks
from services.worker.vllm.link import Peer
from shared.arena import Arena
from shared.blocks import BLOCK_TOKENS, BlockKey, pack_keys, unpack_keys
from shared.errors import PeerUnavailable
from shared.owners import OwnerKey
from shared.runtime.clock import Clock
from shared.runtime.tasks import Tasks
from shared.wire.messages import pack_ints, unpack_ints

log = logging.getLogger(__name__)

STAGE_PATIENCE_S = 2.0  # a turn waits so long for the kvstore's answer
RANKS_PATIENCE_S = 10.0
COMMITS_PATIENCE_S = 5.0


@dataclass(slots=True)
class _Writing:
    """A block that is being copied; its parts come in any order.

    Attributes:
        sums: by rank, of its pages, one a layer; empty: they were not copied.
        is_void: its session was deleted.
    """

    epoch: int = 0
    write: m.Write | None = None
    sums: dict[int, list[int]] = field(default_factory=dict)
    is_void: bool = False


class VllmKv:
    """Args:
    peers: the scheduler's connector, and each rank's in order.
    on_gone: called with a reason when one of them is gone.
    fingerprint: see `Opened`.

    Attributes:
        kv: set before anything is called.
        on_write: called with each block that is committed.
        num_load_failures: pages that could not be loaded, since the start.
    """

    kv: KvClient

    def __init__(
        self,
        peers: Sequence[Peer],
        clock: Clock,
        on_gone: Callable[[str], None],
        fingerprint: str = "",
    ) -> None:
        self._fingerprint = fingerprint
        self.on_write: Callable[[m.Write], None] = lambda write: None
        self._scheduler, *self._ranks = peers
        self._clock = clock
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._epoch = 0
        self._answers: dict[int, asyncio.Future[str]] = {}  # of ranks, to what was sent last
        self._writing: dict[int, _Writing] = {}  # by number of the write
        self._tickets: dict[str, Staged] = {}  # by request
        self._staging: set[str] = set()  # requests that `stage` was asked for, until they end
        self._used: dict[str, CachedTokens] = {}
        self._forgetting: Counter[str] = Counter()  # owners whose earlier writes are void
        self._tasks = Tasks("a question of vLLM's connectors failed")
        self._commits = Tasks("committing blocks failed")
        self.estimates = Estimates()
        self.num_load_failures = 0

    @property
    def has_tails(self) -> bool:
        """Whether a block that is not full can be stored."""
        return self._ranks[0].registered.token_rows > 0

    def hooks(self) -> KvHooks:
        """For the connection to the kvstore."""
        return KvHooks(
            on_connected=self._on_connected,
            on_disconnected=self._on_disconnected,
            before_open=lambda: self._wait(self._detach()),
            before_use=lambda arena: self._wait(self._attach(arena)),
            on_source=self.estimates.on_source,
        )

    async def run(self) -> None:
        """Hear the connectors, for ever."""
        peers = (self._scheduler, *self._ranks)
        reading = [asyncio.ensure_future(peer.read(self._on_message)) for peer in peers]
        try:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
            self._on_gone("a KV connector of vLLM's has ended")
        finally:
            for each in reading:
                each.cancel()

    # The connection to the kvstore.

    def _wait(self, work: Coroutine[None, None, None]) -> None:
        """Until it is done; called outside of the event loop."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _detach(self) -> None:
        """Returns when no rank writes to the arena.

        Raises:
            PeerUnavailable: one does not answer.
        """
        await self._ask_ranks(m.Closed(epoch=self._epoch))

    async def _attach(self, arena: Arena) -> None:
        """Returns when every rank can use the arena.

        Raises:
            PeerUnavailable: one cannot.
        """
        self._epoch = self.kv.epoch + 1
        await self._ask_ranks(self._opened(str(arena.path)))

    def _opened(self, arena_path: str) -> m.Opened:
        num_layers = self._ranks[0].registered.num_layers
        return m.Opened(
            epoch=self._epoch,
            arena_path=arena_path,
            lease_path=self.kv.lease_path,
            num_pages=num_layers * len(self._ranks),
            has_tails=self.has_tails,
            fingerprint=self._fingerprint,
        )

    async def _ask_ranks(self, question: m.Opened | m.Closed) -> None:
        self._answers = {peer.rank: self._loop.create_future() for peer in self._ranks}
        for peer in self._ranks:
            peer.send(question)
        answers = list(self._answers.values())
        done, waiting = await asyncio.wait(answers, timeout=RANKS_PATIENCE_S)
        errors = [each.result() for each in done if each.result()]
        if waiting or errors:
            raise PeerUnavailable(f"vLLM's ranks: {errors or 'no answer'}")

    def _on_connected(self, arena: Arena, epoch: int) -> None:
        assert epoch == self._epoch, "the ranks were sent another epoch"
        self._scheduler.send(self._opened(str(arena.path)))

    def _on_disconnected(self) -> None:
        self._scheduler.send(m.Closed(epoch=self._epoch))

    # Turns.

    async def stage(self, turn: Turn, request_id: str) -> m.RequestKv:
        """What the request is to say of its KV, with what the kvstore has of it."""
        self._staging.add(request_id)
        cache, keys = turn.cache, turn.reusable_keys()
        if self.has_tails and turn.has_tail and len(keys) <= cache.tail_index:
            keys = [*keys[: cache.tail_index], cache.tail_key()]
        staged = None
        if keys and self.kv.is_connected and not cache.is_private:
            staged = await self._stage_turn(turn, keys)
        return m.RequestKv(
            name=request_id,
            root=cache.root.hex(),
            owner=cache.owner.hex(),
            keys=pack_keys(cache.keys),
            num_history=cache.num_history,
            epoch=0 if staged is None else staged.epoch,
            num_asked=0 if staged is None else len(keys),
            is_private=cache.is_private,
            expiry_s=turn.request.expiry_s,
            ticket=None if staged is None else self._ticket(turn, request_id, staged),
        )

    async def _stage_turn(self, turn: Turn, keys: list[BlockKey]) -> Staged | None:
        request = turn.request
        effect = StageTurn(
            turn_id=request.turn_id,
            attempt=request.attempt,
            keys=keys,
            request_id=request.request_id,
            kv_at=request.kv_at,
            patience_ns=int(STAGE_PATIENCE_S * 1e9),
            tenant=request.tenant,
            session_id=request.session_id,
            trace=turn.trace.context,
        )
        answer: asyncio.Future[Staged | None] = self._loop.create_future()
        self._tasks.spawn(self._answer(effect, answer))
        await asyncio.wait([answer], timeout=STAGE_PATIENCE_S)
        if not answer.done():
            answer.cancel()
            return None
        return answer.result()

    async def _answer(self, effect: StageTurn, answer: "asyncio.Future[Staged | None]") -> None:
        staged = await self.kv.stage_turn(effect)
        if not answer.done():
            answer.set_result(staged)
        elif staged is not None:
            await self.kv.release(ticket=staged.ticket)  # too late

    def _ticket(self, turn: Turn, request_id: str, staged: Staged) -> m.Ticket | None:
        """What of the answer is worth waiting for."""
        turn.trace.staged_at_ns, turn.trace.num_staged = self._clock.now_ns(), staged.num_blocks
        if max(staged.ready_in_ns, default=0) > PROMISE_UNKNOWN_NS:
            here = staged.head(staged.num_here)  # what is behind those is not read
            staged = replace(here, ready_in_ns=[], coming_from=None)
        if not staged.num_blocks:
            self._tasks.spawn(self.kv.release(ticket=staged.ticket))
            return None
        self._tickets[request_id] = staged
        num_tokens = turn.tokens_up_to(staged.num_blocks, staged.keys[-1])
        turn.cache.found["host"] = staged.num_here
        if staged.coming_from is not None:
            turn.cache.found[staged.coming_from] = staged.num_blocks - staged.num_here
        return self.message(staged, num_tokens)

    def message(self, staged: Staged, num_tokens: int, num_before: int = 0) -> m.Ticket:
        """A ticket as connectors are given it; see `Ticket`."""
        now_ns = self._clock.now_ns()
        return m.Ticket(
            epoch=staged.epoch,
            num_before=num_before,
            num_blocks=staged.num_blocks,
            num_tokens=num_tokens,
            pages=pack_ints([page for row in staged.pages for page in row]),
            generations=pack_ints([each for row in staged.generations for each in row], "Q"),
            ready_at_ns=[now_ns + promised_ns for promised_ns in staged.ready_in_ns],
        )

    def take_cached(self, request_id: str) -> CachedTokens | None:
        """How much of a request's prompt was not computed; None: not known, or asked before."""
        return self._used.pop(request_id, None)

    def cut(self, request_id: str, num_kept: int) -> None:
        """A request is about to be aborted."""
        self._scheduler.send(m.Cut(name=request_id, num_kept=num_kept))

    def end(self, request_id: str) -> None:
        """A request is over: nothing of its ticket is read."""
        self._staging.discard(request_id)
        self._used.pop(request_id, None)
        self._release(request_id)

    def _release(self, request_id: str) -> None:
        staged = self._tickets.pop(request_id, None)
        if staged is not None and staged.epoch == self.kv.epoch:
            self._tasks.spawn(self.kv.release(ticket=staged.ticket))

    async def forget(self, owner: OwnerKey, keys: list[BlockKey]) -> None:
        """A session was deleted. Returns once no block of it is on its way to the kvstore, and no
        later request finds one in vLLM's cache.

        Raises:
            PeerUnavailable: the kvstore has not answered an earlier commit yet.
        """
        name = owner.hex()
        self._forgetting[name] += 1
        self._scheduler.send(m.Forget(owner=name, keys=pack_keys(keys)))
        for writing in self._writing.values():
            if writing.write is not None and writing.write.owner == name:
                writing.is_void = True
        if not await self._commits.wait(COMMITS_PATIENCE_S):
            raise PeerUnavailable("the kvstore has not answered a commit yet")

    async def drain(self) -> None:
        """Wait until what was stored is below."""
        await self._commits.wait(COMMITS_PATIENCE_S)

    # What the connectors say.

    def _on_message(self, peer: Peer, message: m.FromConnector) -> None:
        match message:
            case m.Attached(epoch=epoch, error=error):
                self._on_answer(peer, epoch, error)
            case m.Detached(epoch=epoch):
                self._on_answer(peer, epoch, "")
            case m.LeaseWanted():
                self._tasks.spawn(self._lease(message))
            case m.StageWanted():
                self._tasks.spawn(self._stage_again(message))
            case m.TicketUsed():
                if message.name in self._tickets and message.name in self._staging:
                    self._used[message.name] = CachedTokens(message.num_local, message.num_loaded)
                self._release(message.name)
            case m.Writes():
                self._on_writes(message)
            case m.Stored():
                self._on_stored(message)
            case m.Forgotten(owner=owner):
                self._forgetting[owner] -= 1
                self._forgetting = +self._forgetting
            case m.LoadsMeasured():
                self.num_load_failures += message.num_failed
                self.estimates.on_load(message.num_bytes, message.duration_ns)

    def _on_answer(self, peer: Peer, epoch: int, error: str) -> None:
        answer = self._answers.get(peer.rank)
        if epoch == self._epoch and answer is not None and not answer.done():
            answer.set_result(error)

    async def _lease(self, wanted: m.LeaseWanted) -> None:
        if wanted.epoch != self.kv.epoch:
            return
        num_layers = self._ranks[0].registered.num_layers
        pages = await self.kv.lease(wanted.num_blocks * num_layers * len(self._ranks))
        if pages is not None:
            self._scheduler.send(m.Leased(epoch=wanted.epoch, pages=pack_ints(pages)))

    async def _stage_again(self, wanted: m.StageWanted) -> None:
        keys = unpack_keys(wanted.keys)
        staged = await self.kv.stage(keys) if self.kv.is_connected else None
        ticket = None
        if staged is not None:
            self._release(wanted.name)
            self._tickets[wanted.name] = staged
            num_tokens = (wanted.num_before + staged.num_blocks) * BLOCK_TOKENS
            ticket = self.message(staged, num_tokens, wanted.num_before)
            if not staged.num_blocks:
                self._release(wanted.name)
                ticket = None
        self._scheduler.send(m.Staged(name=wanted.name, ticket=ticket))

    def _on_writes(self, message: m.Writes) -> None:
        for write in message.writes:
            writing = self._writing.setdefault(write.number, _Writing())
            writing.epoch, writing.write = message.epoch, write
            writing.is_void = self._forgetting[write.owner] > 0
        self._settle([write.number for write in message.writes])

    def _on_stored(self, message: m.Stored) -> None:
        for number, sums in zip(message.numbers, message.checksums, strict=True):
            writing = self._writing.setdefault(number, _Writing())
            writing.sums[message.rank] = unpack_ints(sums, "Q")
        self._settle(message.numbers)

    def _settle(self, numbers: Sequence[int]) -> None:
        """Commit those of these writes that every rank has copied, and let their blocks go."""
        over = [number for number in numbers if self._is_over(number)]
        if not over:
            return
        writes: list[BlockWrite] = []
        checksums: list[list[int]] = []
        unstored: list[int] = []
        unused: list[int] = []
        for number in over:
            writing = self._writing.pop(number)
            assert writing.write is not None
            pages = unpack_ints(writing.write.arena_pages)
            is_current = writing.epoch == self.kv.epoch and self.kv.is_connected
            if all(writing.sums.values()) and is_current and not writing.is_void:
                writes.append(block_write(writing.write, pages))
                self.on_write(writing.write)
                checksums.append(list(_in_page_order(writing.sums)))
                continue
            unstored.append(number)
            if is_current:
                unused += pages
        self._scheduler.send(m.WritesEnded(numbers=over, unstored=unstored))
        if writes:
            self._commits.spawn(self._commit(writes, checksums))
        if unused:
            self._tasks.spawn(self.kv.release(pages=unused))

    def _is_over(self, number: int) -> bool:
        writing = self._writing[number]
        return writing.write is not None and len(writing.sums) == len(self._ranks)

    async def _commit(self, writes: list[BlockWrite], checksums: list[list[int]]) -> None:
        async for keys, is_there in self.kv.commit(writes, checksums):
            if not is_there:
                self._scheduler.send(m.Refused(keys=pack_keys(keys)))


def block_write(write: m.Write, pages: list[int]) -> BlockWrite:
    """A block that a connector stored, as the kvstore takes it."""
    return BlockWrite(
        number=write.number,
        key=BlockKey(bytes.fromhex(write.key)),
        parent=BlockKey(bytes.fromhex(write.parent)),
        tokens=unpack_ints(write.tokens),
        pool_pages=[],
        arena_pages=pages,
        owner=OwnerKey(bytes.fromhex(write.owner)),
        replaces=BlockKey(bytes.fromhex(write.replaces)),
        expiry_s=write.expiry_s,
    )


def _in_page_order(sums: dict[int, list[int]]) -> Iterator[int]:
    """Of each layer, those of all ranks."""
    for of_layer in zip(*(sums[rank] for rank in sorted(sums)), strict=True):
        yield from of_layer
