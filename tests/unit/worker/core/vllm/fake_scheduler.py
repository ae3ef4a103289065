"""vLLM's scheduler, its ranks and a worker, as far as a KV connector sees them.

The KV of a position is a number that names all tokens up to it, so that whatever is in a block can
be checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from services.worker.core.vllm import messages as m
from services.worker.core.vllm.connector import ConnectorCore, LoadOrder, Scheduled
from services.worker.core.vllm.stores import StoreOrder
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, child_key, pack_keys, unpack_keys
from shared.wire.messages import pack_ints, unpack_ints

NUM_BLOCKS = 16
ROOT = BlockKey(bytes(16))
OWNERS = ["0a" * 16, "0b" * 16]
STEP_TOKENS = 100
STEP_NS = 300_000_000
NOTHING = -1

Content = list[int]


class FakePool:
    """vLLM's blocks; the first is its null block."""

    num_blocks = NUM_BLOCKS

    def __init__(self) -> None:
        self.refs = [1] + [0] * (NUM_BLOCKS - 1)
        self.touched = [0] * NUM_BLOCKS
        self.content: list[Content] = [[NOTHING] * BLOCK_TOKENS for _ in range(NUM_BLOCKS)]
        self.cached: dict[int, int] = {}  # block, by its last position's KV
        self.maker = [""] * NUM_BLOCKS  # owner of the request that computed it first

    def touch(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert self.refs[block], "a block that no request has"
            self.refs[block] += 1
            self.touched[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert self.touched[block], "freed more often than touched"
            self.touched[block] -= 1
            self.refs[block] -= 1

    def evict(self, blocks: set[int]) -> None:
        self.cached = {key: block for key, block in self.cached.items() if block not in blocks}

    def take(self, random: Random) -> int | None:
        """A block that no request has; what it had is gone."""
        free = [block for block, refs in enumerate(self.refs) if not refs]
        if not free:
            return None
        block = random.choice(free)
        self.evict({block})
        self.refs[block] = 1
        return block


@dataclass
class FakeRequest:
    """Attributes:
    is_running: in the batch; `is_loading`: its blocks wait for a load.
    """

    request_id: str
    tokens: list[int]
    length: int
    owner: str
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_preemptions: int = 0
    is_running: bool = False
    is_loading: bool = False
    is_loaded: bool = False
    is_over: bool = False
    keys: list[BlockKey] = field(default_factory=list)
    num_expected: int = 0
    num_cached: int = 0
    _content: Content = field(default_factory=list)

    @property
    def content(self) -> Content:
        """The KV of each position: a number that names all tokens up to it."""
        for token in self.tokens[len(self._content) :]:
            before = self._content[-1] if self._content else 0
            self._content.append(hash((before, token)) & 0xFFFFFFFFFFFF)
        return self._content


class World:
    """One vLLM, its worker and kvstore; `step` lets something happen."""

    def __init__(self, random: Random, *, has_tails: bool) -> None:
        self.random = random
        self.pool = FakePool()
        self.sent: list[m.FromConnector] = []
        self.core = ConnectorCore(self.pool, self.sent.append)
        self.has_tails = has_tails
        self.now_ns = 0
        self.requests: dict[str, FakeRequest] = {}
        self.num_requests = 0
        self.below: dict[BlockKey, Content] = {}  # the kvstore
        self.arena: list[Content] = []  # never reused, so that a page is its own generation
        self.expected: dict[BlockKey, Content] = {}
        self.epoch, self.is_open = 0, False
        self.writes: dict[int, m.Write] = {}
        self.ordered: dict[int, StoreOrder] = {}  # that no rank has carried out
        self.loads: list[LoadOrder] = []
        self.finished: set[str] = set()
        self.bad: set[int] = set()
        self.tickets: set[str] = set()  # requests whose ticket was not given back
        self.num_loaded = self.num_stored = self.num_preempted = self.num_failed = 0
        self.num_again = 0

    # What can happen.

    def add(self) -> None:
        """A request comes: it goes on from a common history, or not."""
        random, number = self.random, self.num_requests
        self.num_requests += 1
        history = [random.choice([3, 4, 5, 6, 7, 8])] * random.randrange(64, 300)
        tokens = history + [random.randrange(100)] * random.randrange(1, 90)
        request = FakeRequest(
            f"r{number}", tokens, len(tokens) + random.randrange(1, 80), random.choice(OWNERS)
        )
        keys = chain_keys(ROOT, tokens)
        asked = keys[: (len(tokens) - 1) // BLOCK_TOKENS]
        staged = self._staged(asked) if self.is_open and random.random() < 0.9 else None
        ticket, num_asked = None, 0
        if staged is not None:
            num_asked = len(asked)
            if staged:
                ticket = self._ticket(request.request_id, staged, 0)
        kv = m.RequestKv(
            name=request.request_id, root=ROOT.hex(), owner=request.owner, keys=pack_keys(keys),
            num_asked=num_asked,
            epoch=self.epoch, ticket=ticket, num_history=min(len(history), len(tokens)),
        )  # fmt: skip
        self.requests[request.request_id] = request
        self.core.on_request(request.request_id, kv)

    def abort(self) -> None:
        """A request is over before its end."""
        if waiting := [each for each in self.requests.values() if not each.is_over]:
            loading = [each for each in waiting if each.is_loading]
            request = self.random.choice(loading or waiting)
            if self.random.random() < 0.3:
                kept = self.random.randrange(1, len(request.tokens) + 1)
                self.core.on_message(m.Cut(name=request.request_id, num_kept=kept))
            self._finish(request)

    def connect(self) -> None:
        """Another kvstore, or none; nothing of an earlier one means anything."""
        if self.is_open and self.random.random() < 0.5:
            self.is_open = False
            self.core.on_message(m.Closed(epoch=self.epoch))
            return
        self.epoch, self.is_open = self.epoch + 1, True
        if self.random.random() < 0.5:
            self.below.clear()
        self.core.on_message(
            m.Opened(
                epoch=self.epoch,
                arena_path="",
                lease_path="",
                num_pages=1,
                has_tails=self.has_tails,
            )
        )

    def lose(self) -> None:
        """The kvstore drops a block."""
        if self.below:
            self.below.pop(self.random.choice(sorted(self.below)))

    def forget(self) -> None:
        """A session is deleted."""
        owner = self.random.choice(OWNERS)
        keys = self.random.sample(sorted(self.below), min(2, len(self.below)))
        self.core.on_message(m.Forget(owner=owner, keys=pack_keys(keys)))
        found = {block for block in self.pool.cached.values() if self.pool.maker[block] == owner}
        assert not found, "blocks of a deleted session can be found"

    def answer(self) -> None:
        """The worker answers what it was asked, or some of it."""
        sent, self.sent[:] = list(self.sent), []
        for message in sent:
            match message:
                case m.LeaseWanted(epoch=epoch, num_blocks=num_blocks):
                    num_pages = self.random.randrange(0, num_blocks + 1)
                    pages = [self._page() for _ in range(num_pages)]
                    self.core.on_message(m.Leased(epoch=epoch, pages=pack_ints(pages)))
                case m.StageWanted():
                    self._stage_again(message)
                case m.TicketUsed(name=name):
                    self.tickets.discard(name)
                case m.Writes(writes=writes):
                    self.writes |= {write.number: write for write in writes}

    def store(self) -> None:
        """The rank carries some orders out, whenever it gets to it."""
        for number in self.random.sample(sorted(self.ordered), (len(self.ordered) + 1) // 2):
            order = self.ordered.pop(number)
            self.answer()
            write = self.writes.pop(number)
            is_stored = order.epoch == self.epoch and self.is_open and self.random.random() < 0.9
            if is_stored:
                self.num_stored += 1
                key = BlockKey(bytes.fromhex(write.key))
                content = self.pool.content[order.block][: order.num_tokens]
                assert content == self.expected[key], "a block is stored under another one's key"
                assert unpack_ints(write.tokens) and unpack_ints(write.arena_pages)
                self.below[key] = content
            self.core.on_message(
                m.WritesEnded(numbers=[number], unstored=[] if is_stored else [number])
            )

    def load(self) -> None:
        """The rank carries a load out."""
        if not self.loads:
            return
        order = self.loads.pop(self.random.randrange(len(self.loads)))
        request = self.requests[order.request_id]
        assert request.is_loading and set(order.blocks) <= set(request.blocks)
        is_there = order.epoch == self.epoch
        for block, page in zip(order.blocks, order.pages[0], strict=True):
            if is_there and self.random.random() < 0.85:
                self.pool.content[block] = list(self.arena[page])
            else:
                self.pool.content[block] = [NOTHING] * BLOCK_TOKENS
                self.bad.add(block)
                self.num_failed += 1
        self.num_loaded += 1
        self.finished.add(order.request_id)

    def schedule(self) -> None:
        """vLLM's step."""
        self.now_ns += STEP_NS
        step = self._grow_running()
        for request in list(self.requests.values()):
            if not (request.is_running or request.is_over):
                self._schedule_waiting(request, step)
        for each in step:
            self._cache(self.requests[each.request_id], each.end)
        loads, stores = self.core.plan(step, self.now_ns)
        self.loads += loads
        for order in stores:
            self.ordered[order.number] = order
        for each in step:
            self._compute(self.requests[each.request_id], each.end)
        finished, self.finished = self.finished, set()
        bad, self.bad = self.bad, set()
        self._on_bad(bad)
        if finished or bad:
            self.core.on_loaded(sorted(finished), bad)
        for request_id in finished:
            request = self.requests[request_id]
            request.is_loading, request.is_loaded = False, request.num_computed > 0
            if request.is_over:
                self._free(request)
                del self.requests[request_id]
        for each in step:
            self._sample(self.requests[each.request_id])

    # vLLM's parts.

    def _grow_running(self) -> list[Scheduled]:
        step: list[Scheduled] = []
        running = [each for each in self.requests.values() if each.is_running]
        for request in running:
            if not request.is_running:
                continue
            end = min(len(request.tokens), request.num_computed + STEP_TOKENS)
            new: list[int] = []
            while request.is_running and len(request.blocks) * BLOCK_TOKENS < end:
                block = self.pool.take(self.random)
                if block is None:
                    others = [each for each in running if each.is_running]
                    self._preempt(self.random.choice(others))
                    step = [each for each in step if self.requests[each.request_id].is_running]
                    continue
                request.blocks.append(block)
                new.append(block)
            if request.is_running:
                step.append(
                    Scheduled(
                        request_id=request.request_id, tokens=request.tokens, end=end, blocks=new
                    )
                )
        return step

    def _schedule_waiting(self, request: FakeRequest, step: list[Scheduled]) -> None:
        if request.is_loading:
            return
        local: list[int] = []
        num_external = 0
        if not request.is_loaded:
            local = self._hit(request)
            matched = self.core.match(
                request.request_id, request.tokens, len(local) * BLOCK_TOKENS, self.now_ns,
                was_preempted=request.num_preemptions > 0,
            )  # fmt: skip
            if matched is None:
                return
            num_external = matched
            request.num_computed = len(local) * BLOCK_TOKENS + num_external
            assert request.num_computed <= len(request.tokens)
        end = request.num_computed
        if not num_external:
            end = min(len(request.tokens), end + STEP_TOKENS)
        if not self._allocate(request, local, end):
            if not request.is_loaded:
                request.num_computed = 0
            return
        self.core.on_allocated(request.request_id, request.blocks, num_external)
        if num_external:
            request.is_loading = True
            return
        request.is_running, request.is_loaded = True, False
        step.append(
            Scheduled(
                request_id=request.request_id,
                tokens=request.tokens,
                end=end,
                blocks=list(request.blocks),
                has_all_blocks=True,
            )
        )

    def _hit(self, request: FakeRequest) -> list[int]:
        found: list[int] = []
        content = request.content
        for at in range((len(request.tokens) - 1) // BLOCK_TOKENS):
            block = self.pool.cached.get(content[(at + 1) * BLOCK_TOKENS - 1])
            if block is None:
                break
            found.append(block)
        return found

    def _allocate(self, request: FakeRequest, local: list[int], end: int) -> bool:
        num_new = -(-end // BLOCK_TOKENS) - len(local) - len(request.blocks)
        num_free = sum(not refs for refs in self.pool.refs) - sum(
            not self.pool.refs[block] for block in local
        )
        if num_new > num_free:
            return False
        for block in local:
            self.pool.refs[block] += 1
        request.blocks += local
        request.num_cached += len(local)
        for _ in range(num_new):
            taken = self.pool.take(self.random)
            assert taken is not None
            request.blocks.append(taken)
        return True

    def _preempt(self, request: FakeRequest) -> None:
        self.num_preempted += 1
        self._free(request)
        request.is_running, request.num_computed = False, 0
        request.num_preemptions += 1

    def _free(self, request: FakeRequest) -> None:
        for block in request.blocks:
            self.pool.refs[block] -= 1
        request.blocks, request.num_cached = [], 0

    def _compute(self, request: FakeRequest, end: int) -> None:
        content = request.content
        for at, block in enumerate(request.blocks):
            first, last = at * BLOCK_TOKENS, min((at + 1) * BLOCK_TOKENS, end)
            computed = max(request.num_computed, first)
            if computed < last:
                self.pool.content[block][computed - first : last - first] = content[computed:last]
            if first < last:
                held = self.pool.content[block][: last - first]
                assert held == content[first:last], "it runs on KV of something else"
        request.num_computed = end
        self._expect(request)

    def _cache(self, request: FakeRequest, end: int) -> None:
        """As vLLM does: when blocks are found for a step, and each block once."""
        content = request.content
        for at in range(request.num_cached, end // BLOCK_TOKENS):
            request.num_cached = at + 1
            kv, block = content[(at + 1) * BLOCK_TOKENS - 1], request.blocks[at]
            if kv not in self.pool.cached:
                self.pool.cached[kv], self.pool.maker[block] = block, request.owner

    def _sample(self, request: FakeRequest) -> None:
        if request.is_over or not request.is_running:
            return
        if request.num_computed == len(request.tokens):
            request.tokens.append(self.random.choice([7, 8, 9]))
            if len(request.tokens) >= request.length:
                self._finish(request)

    def _finish(self, request: FakeRequest) -> None:
        self._expect(request)
        blocks = request.blocks[: -(-request.num_computed // BLOCK_TOKENS)]
        self.core.on_finished(request.request_id, request.tokens, request.num_computed, blocks)
        request.is_over, request.is_running = True, False
        if not request.is_loading:
            self._free(request)
            del self.requests[request.request_id]

    def _on_bad(self, bad: set[int]) -> None:
        """A load that failed is good up to its first bad block; if that is the first, vLLM gives
        the blocks back and looks for the request's KV once more.
        """
        for request in self.requests.values():
            if request.is_loading:
                for at, block in reversed(list(enumerate(request.blocks))):
                    if block in bad and at * BLOCK_TOKENS < request.num_computed:
                        request.num_computed = at * BLOCK_TOKENS
                if not (request.num_computed or request.is_over):
                    self._free(request)

    # The worker's and the kvstore's parts.

    def _expect(self, request: FakeRequest) -> None:
        """What belongs under each key of a request."""
        content = request.content
        for end in range(request.num_expected + 1, len(request.tokens) + 1):
            first = (end - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            parent = request.keys[-1] if request.keys else ROOT
            key = child_key(parent, request.tokens[first:end])
            self.expected[key] = content[first:end]
            if end - first == BLOCK_TOKENS:
                request.keys.append(key)
        request.num_expected = len(request.tokens)

    def _page(self, content: Content | None = None) -> int:
        self.arena.append(content or [NOTHING] * BLOCK_TOKENS)
        return len(self.arena) - 1

    def _staged(self, keys: list[BlockKey]) -> list[int]:
        pages = []
        for key in keys:
            if key not in self.below:
                break
            pages.append(self._page(self.below[key]))
        return pages

    def _ticket(self, request_id: str, pages: list[int], num_before: int) -> m.Ticket:
        self.tickets.add(request_id)
        return m.Ticket(
            epoch=self.epoch, num_before=num_before, num_blocks=len(pages),
            num_tokens=(num_before + len(pages)) * BLOCK_TOKENS,
            pages=pack_ints(pages), generations=pack_ints(pages, "Q"),
        )  # fmt: skip

    def _stage_again(self, wanted: m.StageWanted) -> None:
        self.num_again += 1
        pages = self._staged(unpack_keys(wanted.keys)) if self.is_open else []
        ticket = None
        if pages:
            ticket = self._ticket(wanted.name, pages, wanted.num_before)
        if self.random.random() < 0.9:
            self.core.on_message(m.Staged(name=wanted.name, ticket=ticket))
        else:
            self.tickets.discard(wanted.name)  # it comes too late, or never
