"""Announced turns of a model on vLLM: their history is brought into host memory, and from there
into vLLM's own cache while it has room.

The second is done by a request of the lowest priority that has the history as its prompt and asks
for one token: its KV is loaded by the connector, and then is vLLM's to find and to drop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.worker.core.effects import Effect, StageSession
from services.worker.core.kv.expecting import (
    Expected,
    Expecting,
    asked_at,
    prefetched,
    start_at_ns,
)
from services.worker.core.kv.staged import Staged
from services.worker.core.vllm.histories import Histories, SessionTokens, num_same
from services.worker.core.vllm.messages import RequestKv
from services.worker.core.vllm.requests import LOWEST_PRIORITY, VllmRequest
from services.worker.vllm.protocol import VllmEngine
from services.worker.vllm_kv import VllmKv
from shared.blocks import BLOCK_TOKENS, pack_keys
from shared.errors import SymphonyError
from shared.hints import HintShares
from shared.ids import new_id
from shared.owners import OwnerKey
from shared.runtime.clock import Clock
from shared.runtime.tasks import Tasks, wait_set
from shared.wire.messages import encode

REQUESTS_MAX = 4  # that bring history into vLLM's cache at once
USAGE_MAX = 0.75  # of vLLM's cache by requests: above that, nothing is brought into it
IDLE_NS = 60_000_000_000
ONE_TOKEN = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, "detokenize": False}


@dataclass(slots=True)
class _Held:
    """What is held for an announced turn.

    Attributes:
        num_blocks: of vLLM's cache that count as held for it.
    """

    expected: Expected
    staged: Staged
    num_blocks: int


class VllmHints:
    """Args:
    has_waiting: whether turns wait that are here.
    perform: sends what is to be said.
    """

    def __init__(
        self,
        engine: VllmEngine,
        kv: VllmKv,
        clock: Clock,
        has_waiting: Callable[[], bool],
        perform: Callable[[list[Effect]], None],
    ) -> None:
        self._engine = engine
        self._kv = kv
        self._clock = clock
        self._has_waiting = has_waiting
        self._perform = perform
        self._expecting = Expecting()
        self._changed = asyncio.Event()
        self._held: dict[OwnerKey, _Held] = {}
        self._coming: dict[OwnerKey, str] = {}  # request that loads, by session
        self._shares = HintShares.of_pages(engine.info.num_pages // engine.info.num_layers)
        self._tasks = Tasks("a prefetch failed")
        self.histories = Histories()

    async def run(self) -> None:
        """Ask for what announced turns need when they are near, for ever."""
        while True:
            now_ns = self._clock.now_ns()
            self._expire(now_ns)
            for expected in self._expecting.take_due(now_ns):
                self._begin(expected, now_ns)
            self._changed.clear()
            wait_s = max((self._next_at_ns(now_ns) - now_ns) / 1e9, 0.0)
            await wait_set(self._changed, wait_s)

    def _next_at_ns(self, now_ns: int) -> int:
        """When there is something to do."""
        at_ns = [held.expected.expires_at_ns for held in self._held.values()]
        if self._expecting.next_at_ns is not None:
            at_ns.append(self._expecting.next_at_ns)
        return min(at_ns, default=now_ns + IDLE_NS)

    def on_announced(self, expected: Expected) -> None:
        """A turn is expected here."""
        now_ns = self._clock.now_ns()
        self.withdraw(expected.owner)
        at_ns = start_at_ns(expected, self._num_bytes(expected), self._kv.estimates, now_ns)
        if at_ns > now_ns:
            self._expecting.wait(expected, at_ns)
            self._changed.set()
        else:
            self._begin(expected, now_ns)

    def withdraw(self, owner: OwnerKey) -> None:
        """The session's turn is here, or will not come."""
        self._expecting.drop(owner)
        if (held := self._held.pop(owner, None)) is not None:
            self._let_go(held)
        if (request_id := self._coming.pop(owner, None)) is not None:
            self._tasks.spawn(self._engine.abort(request_id))

    def forget(self, owner: OwnerKey) -> None:
        """The session was deleted."""
        self.withdraw(owner)
        self.histories.drop(owner)

    def _num_bytes(self, expected: Expected) -> int:
        info = self._engine.info
        num_blocks = -(-(expected.num_tokens or info.max_model_len) // BLOCK_TOKENS)
        return num_blocks * info.page_bytes * info.num_layers

    def _begin(self, expected: Expected, now_ns: int) -> None:
        if self._kv.kv.is_connected:
            asked = asked_at(expected, now_ns)
            self._tasks.spawn(self._prefetch(asked, self._expecting.ask(asked)))

    async def _prefetch(self, expected: Expected, question: StageSession) -> None:
        """Into host memory, where it is held, and from there into vLLM's cache."""
        staged = await self._kv.kv.stage_session(question)
        if self._expecting.answered(question.number) is None or staged is None:
            if staged is not None:
                await self._kv.kv.release(ticket=staged.ticket)
            return
        tenant, owner = expected.tenant, expected.owner
        num_blocks = min(staged.num_blocks, self._shares.room(tenant, owner))
        if not num_blocks:
            await self._kv.kv.release(ticket=staged.ticket)
            self._perform(prefetched(expected, staged.num_blocks, 0))
            return
        self._shares.take(tenant, owner, num_blocks)
        held = self._held[owner] = _Held(expected, staged, num_blocks)
        self._changed.set()
        num_here = await self._load(held)
        self._perform(prefetched(expected, staged.num_blocks, num_here))

    async def _load(self, held: _Held) -> int:
        """Into vLLM's cache, if it has room; how many blocks are there then."""
        owner, info = held.expected.owner, self._engine.info
        session = self.histories.get(owner)
        usage = self._engine.counts.usage + held.num_blocks * info.num_layers / info.num_pages
        is_busy = self._has_waiting() or usage > USAGE_MAX or len(self._coming) >= REQUESTS_MAX
        if session is None or is_busy:
            return 0
        request_id = new_id("prefetch")
        request = self._request(request_id, held, session)
        if request is None:
            return 0
        self._coming[owner] = request_id
        try:
            async for _ in self._engine.generate(request):
                pass
        except SymphonyError:
            return 0  # the turn finds its history where it was
        finally:
            if self._coming.get(owner) == request_id:
                del self._coming[owner]
        return len(request.tokens) // BLOCK_TOKENS

    def _request(self, request_id: str, held: _Held, session: SessionTokens) -> VllmRequest | None:
        """One that leaves the session's whole blocks in vLLM's cache; None: there are none."""
        num_blocks = min(held.num_blocks, num_same(session, held.staged.keys))
        staged = held.staged.head(num_blocks)
        if not num_blocks:
            return None
        num_tokens = num_blocks * BLOCK_TOKENS
        kv = RequestKv(
            name=request_id,
            root=session.root,
            owner=held.expected.owner.hex(),
            keys=pack_keys(staged.keys),
            epoch=staged.epoch,
            ticket=self._kv.message(staged, num_tokens),
        )
        return VllmRequest(
            request_id=request_id,
            tokens=session.tokens[: num_tokens + 1].tolist(),
            args=ONE_TOKEN,
            salt=session.salt,
            priority=LOWEST_PRIORITY,
            kv=encode(kv).decode(),
        )

    def _expire(self, now_ns: int) -> None:
        for owner, held in list(self._held.items()):
            if held.expected.expires_at_ns <= now_ns:
                self.withdraw(owner)

    def _let_go(self, held: _Held) -> None:
        expected = held.expected
        self._shares.give(expected.tenant, expected.owner, held.num_blocks)
        if held.staged.epoch == self._kv.kv.epoch:
            self._tasks.spawn(self._kv.kv.release(ticket=held.staged.ticket))
