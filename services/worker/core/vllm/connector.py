"""The part of the KV connector that stands in vLLM's scheduler: what of a request comes from below,
and what of it goes there.

vLLM calls in this order: a request is new; how much of it can be loaded (as often as it likes);
blocks were found for it; a step begins; loads have ended; it is over. A wrong answer ends vLLM's
engine, so nothing here believes that a call comes at all, or once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from services.worker.core.vllm.messages import (
    Closed,
    Cut,
    Forget,
    Forgotten,
    FromConnector,
    Leased,
    Opened,
    Refused,
    RequestKv,
    Staged,
    StageWanted,
    Ticket,
    TicketUsed,
    ToConnector,
    Writes,
    WritesEnded,
)
from services.worker.core.vllm.places import Places
from services.worker.core.vllm.stores import BlockPool, NewBlock, StoreOrder, Stores
from shared.blocks import BLOCK_TOKENS, BlockKey, child_key, pack_keys, unpack_keys
from shared.wire.messages import unpack_ints

STAGE_PATIENCE_NS = 1_000_000_000  # a preempted request waits so long for the kvstore's answer
STORES_END_NS = 30_000_000_000  # without a worker, stores under way are over by then
STEP_SHARE = 8  # one of so many blocks, at most, is taken for what a step computes
NO_KEY = BlockKey(b"")

Tokens: TypeAlias = Sequence[int]


class WorkerGone:
    """In place of a message: none will come any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrder:
    """Blocks to load, as sent to each rank: lists ``[layer][block]`` of all layers of all ranks.

    Attributes:
        blocks: of vLLM's cache.
        ready_at_ns: when the last page is promised to be in the arena, monotonic; 0: all are.
    """

    request_id: str
    epoch: int
    blocks: list[int]
    pages: list[list[int]]
    generations: list[list[int]]
    ready_at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A request in the step that begins.

    Attributes:
        end: its leading tokens that are computed when the step is over.
        blocks: that it got for it, or all that it has.
    """

    request_id: str
    tokens: Tokens
    end: int
    blocks: Sequence[int] = ()
    has_all_blocks: bool = False


@dataclass(slots=True)
class _Loading:
    """A load under way: of blocks `first` to `first` + len(`blocks`) of the request."""

    blocks: list[int]
    first: int
    num_local: int  # tokens
    end: int  # tokens
    num_good: int = 0  # leading ones of `blocks` that are not known to be bad


@dataclass(slots=True)
class _Request:
    """Attributes:
    keys: of its full blocks, as far as they were needed.
    num_noted: its leading full blocks of which it is noted where they are.
    num_settled: those that are below or on their way.
    is_asking: it waits for the kvstore's answer of its blocks `asked`, since `asked_at_ns`.
    has_failed: a load of it did: it is computed from then on.
    matched: tokens in vLLM's cache, when it was last asked how many can be loaded.
    """

    kv: RequestKv
    owner: str
    root: BlockKey
    keys: list[BlockKey]
    ticket: Ticket | None
    is_private: bool
    blocks: list[int] = field(default_factory=list)
    num_noted: int = 0
    num_settled: int = 0
    num_kept: int | None = None
    was_allocated: bool = False
    is_asking: bool = False
    has_asked: bool = False
    has_failed: bool = False
    asked_at_ns: int = 0
    asked: Sequence[BlockKey] = ()
    matched: int = 0
    loading: _Loading | None = None


class ConnectorCore:
    """Args:
    send: passes a message to the worker; never waits.
    step_tokens: that a step computes at most.

    Attributes:
        fingerprint: see `Opened`.
    """

    def __init__(
        self, pool: BlockPool, send: Callable[[FromConnector], None], step_tokens: int = 0
    ) -> None:
        self._send = send
        self._has_tails = False
        self.fingerprint = ""
        self._is_alone = False
        self._let_go_at_ns = 0
        self._pool = pool
        self._requests: dict[str, _Request] = {}  # by vLLM's names
        self._named: dict[str, _Request] = {}  # by the worker's
        self._loads: list[LoadOrder] = []
        step_blocks = min(step_tokens // BLOCK_TOKENS, pool.num_blocks // STEP_SHARE)
        self.stores = Stores(pool, step_blocks=step_blocks)
        self._places = Places()

    # The worker's messages.

    def on_message(self, message: ToConnector | WorkerGone) -> None:
        """A message of the worker's."""
        match message:
            case WorkerGone():
                self.stores.close()
                self._is_alone = True
            case Opened():
                self._has_tails = message.has_tails
                self.fingerprint = message.fingerprint
                self.stores.open(message.epoch, message.num_pages)
                self.stores.refill(0, self._send)
            case Closed():
                self.stores.close()
            case Leased(epoch=epoch, pages=pages):
                self.stores.on_leased(epoch, unpack_ints(pages))
            case WritesEnded(numbers=numbers, unstored=unstored):
                self.stores.on_ended(numbers, unstored)
            case Refused(keys=keys):
                for key in unpack_keys(keys):
                    self.stores.set_gone(key)
            case Staged(name=name, ticket=ticket):
                self._on_staged(name, ticket)
            case Forget():
                self._on_forget(message)
            case Cut(name=name, num_kept=num_kept):
                if (request := self._named.get(name)) is not None:
                    request.num_kept = num_kept

    def _on_staged(self, name: str, ticket: Ticket | None) -> None:
        request = self._named.get(name)
        if request is None or not request.is_asking:
            self._send(TicketUsed(name=name))  # it does not wait any more
            return
        request.is_asking = False
        request.ticket = ticket
        num_blocks = 0 if ticket is None else ticket.num_blocks
        for key in request.asked[:num_blocks]:
            self.stores.set_below(key)
        for key in request.asked[num_blocks:]:
            self.stores.set_gone(key)

    def _on_forget(self, message: Forget) -> None:
        for request in self._requests.values():
            if request.owner == message.owner:
                request.is_private = True
                self._pool.evict(set(request.blocks))
        if blocks := self._places.take(message.owner, unpack_keys(message.keys)):
            self._pool.evict(blocks)
        self._send(Forgotten(owner=message.owner))

    # vLLM's calls.

    def on_request(self, request_id: str, kv: RequestKv) -> None:
        """A request came."""
        request = self._requests[request_id] = self._named[kv.name] = _Request(
            kv=kv,
            owner=kv.owner,
            root=BlockKey(bytes.fromhex(kv.root)),
            keys=unpack_keys(kv.keys),
            ticket=kv.ticket,
            is_private=kv.is_private,
        )
        if kv.epoch != self.stores.epoch:
            return
        num_full = 0 if kv.ticket is None else kv.ticket.num_tokens // BLOCK_TOKENS
        for key in request.keys[:num_full]:
            self.stores.set_below(key)
        for key in request.keys[num_full : kv.num_asked]:
            self.stores.set_gone(key)  # as far as was known, it was there

    def match(
        self, request_id: str, tokens: Tokens, num_local: int, now_ns: int, *, was_preempted: bool
    ) -> int | None:
        """How many tokens behind `num_local` can be loaded; None: ask again.

        Args:
            num_local: leading tokens that are in vLLM's cache, whole blocks of them.
        """
        request = self._requests.get(request_id)
        if request is None or request.loading is not None:
            return 0
        if was_preempted and request.was_allocated:
            self._on_preempted(request)
        is_unasked = was_preempted or request.kv.must_ask
        if request.ticket is None and is_unasked and self._asks(
            request, tokens, num_local, now_ns
        ):  # fmt: skip
            return None
        request.matched = num_local
        if not self._is_current(request.ticket):
            return 0
        assert request.ticket is not None
        if num_local < request.ticket.num_before * BLOCK_TOKENS:
            return 0  # what precedes the staged blocks has left vLLM's cache
        end = min(request.ticket.num_tokens, len(tokens) - 1)
        return max(end - num_local, 0)

    def _on_preempted(self, request: _Request) -> None:
        """It holds nothing, and may have lost what it had in vLLM's cache."""
        request.was_allocated = request.has_asked = request.is_asking = False
        request.blocks, request.num_noted, request.ticket = [], 0, None

    def _asks(self, request: _Request, tokens: Tokens, num_local: int, now_ns: int) -> bool:
        """Whether a request waits for what the kvstore has of it."""
        if request.is_asking:
            request.is_asking = now_ns < request.asked_at_ns + STAGE_PATIENCE_NS
            return request.is_asking
        can_ask = self.stores.is_open and not (request.is_private or request.has_failed)
        if request.has_asked or not can_ask:
            return False
        request.has_asked = True
        first, last = num_local // BLOCK_TOKENS, (len(tokens) - 1) // BLOCK_TOKENS
        if first >= last:
            return False
        if not (request.kv.must_ask or self.stores.has(self._key(request, tokens, first))):
            return False
        self._key(request, tokens, last - 1)
        request.is_asking, request.asked_at_ns = True, now_ns
        request.asked = request.keys[first:last]
        keys = pack_keys(request.asked)
        self._send(StageWanted(name=request.kv.name, keys=keys, num_before=first))
        return True

    def on_allocated(self, request_id: str, blocks: Sequence[int], num_external: int) -> None:
        """vLLM found blocks for a request: all that it has now. Of its tokens `num_external` are to
        be loaded into the last ones of these that it needs for them.
        """
        request = self._requests.get(request_id)
        if request is None:
            return
        request.blocks = list(blocks)
        request.was_allocated = True
        ticket, request.ticket = request.ticket, None
        if num_external:
            assert ticket is not None, "nothing was offered"
            self._load(request_id, request, ticket, num_external)
        elif ticket is not None:
            self._send(TicketUsed(name=request.kv.name, num_local=request.matched))

    def _load(self, request_id: str, request: _Request, ticket: Ticket, num_external: int) -> None:
        end = request.matched + num_external
        first, last = request.matched // BLOCK_TOKENS, -(-end // BLOCK_TOKENS)
        blocks = request.blocks[first:last]
        request.loading = _Loading(blocks, first, request.matched, end, len(blocks))
        part = slice(first - ticket.num_before, last - ticket.num_before)
        pages, generations = unpack_ints(ticket.pages), unpack_ints(ticket.generations, "Q")
        rows = range(0, len(pages), ticket.num_blocks)
        self._loads.append(
            LoadOrder(
                request_id=request_id,
                epoch=ticket.epoch,
                blocks=blocks,
                pages=[pages[row : row + ticket.num_blocks][part] for row in rows],
                generations=[generations[row : row + ticket.num_blocks][part] for row in rows],
                ready_at_ns=max(ticket.ready_at_ns, default=0),
            )
        )

    def plan(
        self, step: Sequence[Scheduled], now_ns: int
    ) -> tuple[list[LoadOrder], list[StoreOrder]]:
        """A step begins: what is to be loaded beside it, and stored behind it."""
        if self._is_alone:
            self._let_go(now_ns)
        for each in step:
            if (request := self._requests.get(each.request_id)) is None:
                continue
            if each.has_all_blocks:
                request.blocks = list(each.blocks)
            else:
                request.blocks += each.blocks
            self._note(request, each.tokens, each.end)
            self._store(request, each.tokens, each.end)
            if request.is_private and not request.kv.is_private:
                self._pool.evict(set(request.blocks))  # its session was deleted meanwhile
        loads, self._loads = self._loads, []
        orders, writes = self.stores.take()
        if writes:
            self._send(Writes(epoch=self.stores.epoch, writes=writes))
        self.stores.refill(now_ns, self._send)
        return loads, orders

    def _let_go(self, now_ns: int) -> None:
        """The worker does not say any more when stores are over: the ranks end theirs soon after
        it is gone.
        """
        self._let_go_at_ns = self._let_go_at_ns or now_ns + STORES_END_NS
        if now_ns >= self._let_go_at_ns:
            self.stores.end_all()

    def on_loaded(self, request_ids: Sequence[str], bad_blocks: set[int]) -> None:
        """What the ranks say of loads: these are over; and these blocks, perhaps of loads that are
        not over, have not what was to be there.
        """
        if bad_blocks:
            for request in self._requests.values():
                if (loading := request.loading) is not None:
                    bad = [at for at, block in enumerate(loading.blocks) if block in bad_blocks]
                    loading.num_good = min([*bad, loading.num_good])
        for request_id in request_ids:
            loaded = self._requests.get(request_id)
            if loaded is None or loaded.loading is None:
                continue
            loading, loaded.loading = loaded.loading, None
            good_end = min((loading.first + loading.num_good) * BLOCK_TOKENS, loading.end)
            if loading.num_good < len(loading.blocks):
                loaded.has_failed = True
                for key in loaded.keys[loading.first + loading.num_good :]:
                    self.stores.set_gone(key)
            self._send(
                TicketUsed(
                    name=loaded.kv.name,
                    num_local=loading.num_local,
                    num_loaded=max(good_end - loading.num_local, 0),
                )
            )

    def on_finished(
        self, request_id: str, tokens: Tokens, num_computed: int, blocks: Sequence[int]
    ) -> None:
        """A request is over. What it has computed and is not below yet is stored behind the next
        step; its blocks are held until then.
        """
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        self._named.pop(request.kv.name, None)
        if request.loading is not None or request.ticket is not None or request.is_asking:
            self._send(TicketUsed(name=request.kv.name))
        if request.loading is not None:
            return  # its blocks may have anything in them
        end = min(num_computed, len(tokens) - 1, len(blocks) * BLOCK_TOKENS)
        if request.num_kept is not None:
            end = min(end, request.num_kept)
        request.blocks = list(blocks)
        self._note(request, tokens, end)
        self._store(request, tokens, end)
        num_full = end // BLOCK_TOKENS
        if self._has_tails and end % BLOCK_TOKENS and request.num_settled == num_full:
            self._store_tail(request, tokens, end)

    @property
    def num_requests(self) -> int:
        """Requests with KV below that are not over."""
        return len(self._requests)

    # Keys and stores.

    def _note(self, request: _Request, tokens: Tokens, end: int) -> None:
        """Note where full blocks are that vLLM's cache has, or is about to have."""
        num_full = min(end, len(tokens)) // BLOCK_TOKENS
        for index in range(request.num_noted, min(num_full, len(request.blocks))):
            self._places.note(
                request.blocks[index], self._key(request, tokens, index), request.owner
            )
            request.num_noted = index + 1

    def _store(self, request: _Request, tokens: Tokens, end: int) -> None:
        """Order the copies of full blocks that are computed, in order, as far as there is room."""
        num_full = min(end, len(tokens)) // BLOCK_TOKENS
        for index in range(request.num_settled, min(num_full, len(request.blocks))):
            key = self._key(request, tokens, index)
            is_below = request.is_private or self.stores.has(key)
            if not (is_below or self._add(request, tokens, index, BLOCK_TOKENS)):
                return
            request.num_settled = index + 1

    def _add(self, request: _Request, tokens: Tokens, index: int, num_tokens: int) -> bool:
        return self.stores.add(self._new_block(request, tokens, index, num_tokens))

    def _store_tail(self, request: _Request, tokens: Tokens, end: int) -> None:
        if request.is_private:
            return
        index = end // BLOCK_TOKENS
        new = self._new_block(request, tokens, index, end % BLOCK_TOKENS)
        if not self.stores.has(new.key):
            self.stores.add(new)

    def _new_block(
        self, request: _Request, tokens: Tokens, index: int, num_tokens: int
    ) -> NewBlock:
        start = index * BLOCK_TOKENS
        parent = self._key(request, tokens, index - 1) if index else request.root
        of_block = list(tokens[start : start + num_tokens])
        is_full = num_tokens == BLOCK_TOKENS
        history_end, replaces = request.kv.num_history, NO_KEY
        if start < history_end < start + num_tokens and self._has_tails:
            replaces = child_key(parent, of_block[: history_end - start])
        return NewBlock(
            block=request.blocks[index],
            key=self._key(request, tokens, index) if is_full else child_key(parent, of_block),
            parent=parent,
            tokens=of_block,
            owner=request.owner,
            replaces=replaces,
            expiry_s=request.kv.expiry_s,
        )

    def _key(self, request: _Request, tokens: Tokens, index: int) -> BlockKey:
        """Key of its full block `index`."""
        keys = request.keys
        while len(keys) <= index:
            start = len(keys) * BLOCK_TOKENS
            parent = keys[-1] if keys else request.root
            keys.append(child_key(parent, tokens[start : start + BLOCK_TOKENS]))
        return keys[index]

    def _is_current(self, ticket: Ticket | None) -> bool:
        """Whether there is one, of the kvstore that is there."""
        return ticket is not None and self.stores.is_open and ticket.epoch == self.stores.epoch
