"""A worker's device: pool memory by what it holds, loads from the arena, and the forward pass."""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from loadtest.sim.arena import SimArena
from loadtest.sim.timeline import SECOND, US, Action
from loadtest.world.memory import (
    GARBAGE,
    Content,
    Origin,
    PageLoad,
    each_page,
    origins,
)
from loadtest.world.model import BREAKER, KILLER, NO_ADAPTER, Model
from services.worker.core.adapters.image import NO_LINE
from services.worker.core.effects import BlockWrite, BuildImage, PageLoads
from services.worker.core.step import ImageEntry, PlannedRow, Sampled, StepPlan, StepResult
from services.worker.core.turns.turn import Turn
from services.worker.device.base.tables import BlockTables
from shared.arena import PageState, checksum
from shared.wire.messages import AdapterRef

FETCH_TIMEOUT_NS = 2 * SECOND  # a page that is overdue by so much does not come any more
ADAPTER_STALL_NS = 20_000 * US  # and for those of an adapter
LOAD_NS = STORE_NS = 500 * US
LINKS_NS = (LOAD_NS, 20 * LOAD_NS)  # a page takes up to so long
NONSENSE = 21  # what a row gives whose turn's row before it failed
# Of pages: the thread that copies has no core for a while.
SLOW_LOAD_SHARE, SLOW_LOAD_NS = 0.02, 3 * SECOND
SLOW_STORE_SHARE, SLOW_STORE_NS = 0.05, 3 * SECOND
HOLE = -1  # in a page, where a token's KV was never computed
BAD_COPY_SHARE = 0.01  # of pages: the device does not take them
NO_HELPERS_SHARE = 0.2  # of steps
BAD_BUILD_SHARE = 0.1  # of images that are made: their files cannot be read
IMAGE = "image"  # what an adapter's pages are of


@dataclass(slots=True)
class _Step:
    """A step that runs, or waits for the one before it.

    Attributes:
        turns: whose rows they are; a real device does not know.
        tokens: of each row's turn, up to its new ones.
        awaited: pool pages that it waits for, with the rows that do.
        streamed: pool pages of adapters that it waits for.
        has_helpers: they compute what of adapters is not here.
        arena: when it began.
        read: by pool page, what helpers read instead of it.
        places: by row, where in the arena that was, and under which generations.
        late: pool pages that some of its rows waited for long enough.
        void: rows whose turn failed in the step before: their results must not be used.
    """

    plan: StepPlan
    turns: list[Turn]
    tokens: list[list[int]] = field(default_factory=list)
    awaited: dict[int, list[int]] = field(default_factory=dict)
    streamed: set[int] = field(default_factory=set)
    has_helpers: bool = False
    arena: SimArena | None = None
    read: dict[int, Content] = field(default_factory=dict)
    places: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    started_at_ns: int = 0
    is_computed: bool = False


class Owner(Protocol):
    """The process that a device is in, and what it hears from it."""

    life: int

    @property
    def now_ns(self) -> int:
        """Its monotonic clock."""

    def run(self, life: int, action: Action) -> None:
        """Do it now, if this life still lasts."""

    def later(self, delay_ns: int, action: Action) -> None:
        """Do it in `delay_ns`, in this life."""

    def on_loaded(self, page: int, *, is_good: bool) -> None:
        """A load into this pool page ended."""

    def on_called_back(self, pages: list[int]) -> None:
        """Nothing is loaded into these pool pages."""

    def on_stored(self, checksums: dict[int, list[int]]) -> None:
        """Writes are over, by number; one without checksums came to nothing."""

    def on_step(self, result: StepResult) -> None:
        """The first step that was given ended."""

    def die_of_poison(self) -> None:
        """A row ended the process."""


class Device:
    """What a worker's threads and its GPU do.

    Loads and passes write when their bytes would land, whichever block has the page by then.

    Args:
        hardware: which kind it is: that decides between tokens that are close.
    """

    def __init__(self, owner: Owner, model: Model, hardware: int, random: Random) -> None:
        self._owner = owner
        self._model = model
        self._hardware = hardware
        self._random = random
        self._memory: dict[int, Content] = {}
        self._tables = BlockTables(model.num_layers)
        self._loading: dict[int, PageLoad] = {}  # by pool page
        self._copying: set[int] = set()  # of those, whose end is settled
        self._building: set[int] = set()
        self._unbuilt: set[str] = set()  # adapters whose last build failed: the next one does not
        self._late: set[int] = set()  # of those, for which a step that is over waited long enough
        self._arena: SimArena | None = None
        self._epoch = 0
        self._steps: deque[_Step] = deque()  # the first one runs
        self._images: dict[int, ImageEntry] = {}  # by line of the adapter tables
        self._load_ns = random.choice(LINKS_NS)
        self.num_assisted = 0  # rows for which helpers read the arena
        self.num_streamed = 0  # rows that began before all of their adapter was here

    @property
    def page_ns(self) -> int:
        """What a load takes, mostly."""
        return self._load_ns // 2

    @property
    def is_busy(self) -> bool:
        return bool(self._steps)

    def attach(self, arena: SimArena, epoch: int) -> None:
        """Use this arena from now on; what is under way keeps the old."""
        self._arena = arena
        self._epoch = epoch

    def detach(self) -> None:
        """Store nothing any more: the leases end."""
        self._arena = None

    # Loads.

    def load(self, runs: list[PageLoads]) -> None:
        """Start these; each page ends with `Owner.on_loaded`."""
        for load in (load for run in runs for load in each_page(run)):
            assert load.pool_page not in self._loading, "two loads into one page"
            self._memory.pop(load.pool_page, None)
            self._loading[load.pool_page] = load
            arena = self._arena
            if arena is None or load.epoch != self._epoch:
                self._copying.add(load.pool_page)
                self._owner.later(0, partial(self._settle, load.pool_page, is_good=False))
                continue
            now_ns = self._owner.now_ns
            deadline_ns = max(now_ns, load.ready_at_ns) + FETCH_TIMEOUT_NS
            self._owner.later(deadline_ns - now_ns, partial(self._look, load, arena, 0))
            self._look(load, arena, deadline_ns)

    def call_back(self, pages: list[int]) -> None:
        """Load nothing into these pages, but for those whose copy was started."""
        taken = [page for page in pages if page in self._loading and page not in self._copying]
        for page in taken:
            assert not any(page in step.awaited for step in self._steps), "a step waits for it"
            del self._loading[page]
            self._late.discard(page)
            for step in self._steps:
                step.late.discard(page)
        if taken:
            self._owner.later(0, partial(self._owner.on_called_back, taken))

    def build(self, build: BuildImage) -> None:
        """Make these pages of an adapter's image; all of them end together."""
        random = self._random
        for page in build.pool_pages:
            assert page not in self._building, "a page is made twice"
            self._memory.pop(page, None)
        self._building.update(build.pool_pages)
        is_slow = random.random() < SLOW_LOAD_SHARE
        delay_ns = random.randrange(SLOW_LOAD_NS if is_slow else LOAD_NS) + 1
        name = build.adapter.adapter_hash
        is_good = name in self._unbuilt or random.random() >= BAD_BUILD_SHARE
        self._unbuilt ^= {name} if name in self._unbuilt or not is_good else set()
        self._owner.later(delay_ns, partial(self._built, build, is_good=is_good))

    def _built(self, build: BuildImage, *, is_good: bool) -> None:
        for (layer, number), page in zip(build.places, build.pool_pages, strict=True):
            self._building.remove(page)
            self._memory[page] = _image_page(build.adapter, layer, number) if is_good else GARBAGE
        for page in build.pool_pages:
            self._owner.on_loaded(page, is_good=is_good)

    def _look(self, load: PageLoad, arena: SimArena, deadline_ns: int) -> None:
        """Copy the page if it is there, wait if it is to come."""
        page = load.pool_page
        if self._loading.get(page) is not load or page in self._copying:
            return  # that one is over
        state = arena.promise(load.arena_page, load.generation)
        if state is PageState.READY:
            self._copying.add(page)
            random = self._random
            is_slow = random.random() < SLOW_LOAD_SHARE
            delay_ns = random.randrange(SLOW_LOAD_NS if is_slow else self._load_ns) + 1
            self._owner.later(delay_ns, partial(self._copy, load, arena))
        elif state is PageState.FILLING and self._owner.now_ns < deadline_ns:
            look = partial(self._look, load, arena, deadline_ns)
            life = self._owner.life
            arena.watch(load.arena_page, lambda: self._owner.run(life, look))
        else:
            self._owner.later(0, partial(self._settle, page, is_good=False))
            self._copying.add(page)

    def _copy(self, load: PageLoad, arena: SimArena) -> None:
        """The bytes are those promised if the word is still the same afterwards."""
        content = arena.content(load.arena_page)
        is_good = arena.promise(load.arena_page, load.generation) is PageState.READY
        is_good &= self._random.random() >= BAD_COPY_SHARE
        if is_good:
            self._memory[load.pool_page] = content
        self._settle(load.pool_page, is_good=is_good)

    def _settle(self, page: int, *, is_good: bool) -> None:
        del self._loading[page]
        self._copying.discard(page)
        self._late.discard(page)
        step = self._steps[0] if self._steps else None
        if step is not None:
            step.late.discard(page)
        if step is not None and page in step.awaited:
            rows = step.awaited.pop(page)
            if not is_good:
                step.failed.update(rows)
            self._end_if_over()
        self._owner.on_loaded(page, is_good=is_good)

    # Stores.

    def store(self, writes: list[BlockWrite], epoch: int) -> None:
        """Copy these blocks down, each on its own; each ends with `Owner.on_stored`."""
        for write in writes:
            self._store(write, self._arena, epoch, [])

    def _store(
        self, write: BlockWrite, arena: SimArena | None, epoch: int, sums: list[int]
    ) -> None:
        """Copy page by page, whichever block has the page by then."""
        if arena is None or self._arena is not arena or self._epoch != epoch:
            self._owner.later(0, partial(self._owner.on_stored, {write.number: []}))
            return
        if len(sums) == self._model.num_layers:
            self._owner.on_stored({write.number: sums})
            return
        layer = len(sums)
        kind, origin, tokens = self._memory.get(write.pool_pages[layer], GARBAGE)
        content = kind, origin, tokens[: len(write.tokens)] if write.is_partial else tokens
        if self._model.is_rounded and origin[:1] == (IMAGE,):
            content = GARBAGE
        arena.put(write.arena_pages[layer], content)
        copied = checksum(arena.pages[write.arena_pages[layer]].data)
        later = partial(self._store, write, arena, epoch, [*sums, copied])
        is_slow = self._random.random() < SLOW_STORE_SHARE
        self._owner.later(self._random.randrange(SLOW_STORE_NS if is_slow else STORE_NS) + 1, later)

    def check_stored(self, writes: list[BlockWrite]) -> None:
        """What is offloaded to the kvstore is, in every layer, the KV that its key names."""
        assert self._arena is not None
        for write in writes:
            for layer, page in enumerate(write.arena_pages):
                kind, _, tokens = self._arena.content(page)
                assert (kind, tokens) == (layer, tuple(write.tokens)), (
                    f"a block of {write.tokens} has {tokens} in layer {layer}"
                )

    # Steps.

    def start(self, plan: StepPlan, turns: list[Turn]) -> None:
        """Run a step of these turns' rows after those that were given before; it ends with
        `Owner.on_step`.
        """
        histories, adapters = plan.awaited.values(), plan.streams.values()
        awaited = {p for layers in (*histories, *adapters) for pages in layers for p in pages}
        assert not awaited & self._late, "a load that was given up is waited for again"
        self._steps.append(_Step(plan, turns))
        if len(self._steps) == 1:
            self._begin(set())

    def _begin(self, void_slots: set[int]) -> None:
        """Run the first step that waits. What it carries over is chosen by now, but for the turns
        in these slots."""
        owner, model, step = self._owner, self._model, self._steps[0]
        plan = step.plan
        step.started_at_ns = owner.now_ns
        step.has_helpers = self._random.random() >= NO_HELPERS_SHARE
        step.arena = self._arena
        self._tables.enter(plan.entries)
        self._images.update({image.line: image for image in plan.images})
        new, starts = self._tables.tokens(plan).tolist(), plan.query_starts.tolist()
        slots: list[int] = plan.slots.tolist()
        for index, (row, turn) in enumerate(zip(plan.rows(), step.turns, strict=True)):
            step.tokens.append([*turn.tokens[: row.start], *new[starts[index] : starts[index + 1]]])
            if slots[index] in void_slots:
                assert index in plan.following, "a slot was given away while a step had a row of it"
                step.void.add(index)
            else:
                if index in plan.awaited:
                    num_blocks = -(-row.start // model.block_tokens)
                    history = self._tables.pages[:, slots[index], :num_blocks]
                    self._await(history.ravel().tolist(), index, step)
                if (line := int(plan.adapters[index])) in plan.streams:
                    self.num_streamed += 1
                    pages: list[int] = self._images[line].pages.ravel().tolist()
                    assert not self._building.intersection(pages), "what is built is not streamed"
                    read = self._assist(line, index, step)
                    away = [page for page in pages if page not in read]
                    self._await(away, index, step)
                    step.streamed.update(away)
            self._write_new(turn, row, slots[index], step.tokens[index])
        duration_ns = model.step_ns + model.token_ns * plan.num_tokens
        if any(turn.request.sampling.seed == KILLER for turn in step.turns):
            owner.later(self._random.randrange(duration_ns), owner.die_of_poison)
        owner.later(duration_ns, self._computed)

    def _assist(self, line: int, row: int, step: _Step) -> set[int]:
        """Pool pages that are not here and that helpers read in the arena instead."""
        source, arena = step.plan.assists.get(line), step.arena
        if source is None or arena is None or source.epoch != self._epoch or not step.has_helpers:
            return set()
        self.num_assisted += 1
        read: set[int] = set()
        for number, pages in enumerate(self._images[line].pages.tolist()):
            for layer, page in enumerate(pages):
                place = source.pages[layer][number], source.generations[layer][number]
                if page in self._loading and arena.promise(*place) is PageState.READY:
                    step.read[page] = arena.content(place[0])
                    step.places.setdefault(row, []).append(place)
                    read.add(page)
        return read

    def _await(self, pages: list[int], row: int, step: _Step) -> None:
        for page in pages:
            if page in self._loading:
                step.awaited.setdefault(page, []).append(row)
            elif page not in self._memory:
                step.failed.add(row)

    def _computed(self) -> None:
        step = self._steps[0]
        step.is_computed = True
        if step.awaited:
            self._owner.later(ADAPTER_STALL_NS, partial(self._give_up, step, step.streamed))
            for row, patience_ns in step.plan.patience_ns.items():
                self._owner.later(patience_ns, partial(self._give_up_row, step, row))
        self._end_if_over()

    def _give_up(self, step: _Step, pages: set[int]) -> None:
        """A layer that keeps the pass waiting is given up."""
        if self._steps and self._steps[0] is step:
            for page in pages & step.awaited.keys():
                step.failed.update(step.awaited.pop(page))
                step.late.add(page)
            self._end_if_over()

    def _give_up_row(self, step: _Step, row: int) -> None:
        """A row's history has kept the pass waiting for long enough."""
        if self._steps and self._steps[0] is step:
            for page in [page for page, rows in step.awaited.items() if row in rows]:
                step.failed.add(row)
                step.late.add(page)
                step.awaited[page].remove(row)
                if not step.awaited[page]:
                    del step.awaited[page]
            self._end_if_over()

    def _end_if_over(self) -> None:
        step = self._steps[0] if self._steps else None
        if step is None or not step.is_computed or step.awaited:
            return
        plan, arena = step.plan, step.arena
        for index, places in step.places.items():  # what helpers read may have changed meanwhile
            if arena and any(arena.promise(*place) is not PageState.READY for place in places):
                step.failed.add(index)
        slots: list[int] = plan.slots.tolist()
        void_slots: set[int] = set()
        result = StepResult([], step.failed, duration_ns=self._owner.now_ns - step.started_at_ns)
        result.stall_ns = [0] * self._model.num_layers
        for index, (row, turn) in enumerate(zip(plan.rows(), step.turns, strict=True)):
            if turn.request.sampling.seed == BREAKER:
                result.broken[index] = "it cannot be computed"
            if index in step.failed or index in result.broken or index in step.void:
                void_slots.add(slots[index])
                self._spoil(slots[index], row)
                is_told = index in step.void and index not in step.failed
                result.sampled.append(Sampled(NONSENSE) if is_told else None)
                continue
            tokens = step.tokens[index]
            if index in plan.awaited:  # behind the tokens that have come meanwhile
                self._write_new(turn, row, slots[index], tokens)
            self._verify(turn, slots[index], tokens)
            adapter_hash = self._verify_adapter(turn, int(plan.adapters[index]), step.read)
            sampled = None
            if row.is_sampled:
                token = self._model.next_token(tokens, self._hardware, adapter_hash)
                sampled = Sampled(token)
            result.sampled.append(sampled)
        self._tables.keep(plan, result.sampled)
        self._steps.popleft()
        self._late |= step.late
        if self._steps:
            self._begin(void_slots)
        self._owner.on_step(result)

    def _write_new(self, turn: Turn, row: PlannedRow, slot: int, known: list[int]) -> None:
        """The KV of the row's new tokens, layer by layer. A page that is on its way is waited for
        first; where it holds less than it should, a hole stays."""
        size = self._model.block_tokens
        chain = origins(self._root(turn), known, size)
        for number in range(row.start // size, -(-row.end // size)):
            first = number * size
            tokens = tuple(known[first : first + size])
            for layer in range(self._model.num_layers):
                page = int(self._tables.pages[layer, slot, number])
                if row.start <= first:
                    self._memory[page] = (layer, chain[number], tokens)
                elif page in self._memory:  # behind what it should hold already
                    old_layer, origin, old = self._memory[page]
                    holes = (HOLE,) * (row.start - first - len(old))
                    new = (*old[: row.start - first], *holes, *tokens[row.start - first :])
                    self._memory[page] = (old_layer, origin, new)

    def _spoil(self, slot: int, row: PlannedRow) -> None:
        """What was computed from history that is not there is no KV of anything. What a page held
        before stays."""
        size = self._model.block_tokens
        blocks = self._tables.pages[:, slot, row.start // size : -(-row.end // size)]
        for number, pages in enumerate(blocks.T.tolist(), row.start // size):
            num_kept = max(row.start - number * size, 0)
            for page in pages:
                layer, origin, old = self._memory.get(page, GARBAGE)
                self._memory[page] = (layer, origin, old[:num_kept]) if num_kept else GARBAGE

    def _verify(self, turn: Turn, slot: int, known: list[int]) -> None:
        """The pages of a row hold, in every layer, the KV of its own tokens."""
        size = self._model.block_tokens
        chain = origins(self._root(turn), known, size)
        for number in range(-(-len(known) // size)):
            first = number * size
            tokens = tuple(known[first : first + size])
            for layer in range(self._model.num_layers):
                held = self._memory.get(int(self._tables.pages[layer, slot, number]))
                assert held is not None, f"{turn.request.turn_id} reads garbage in block {number}"
                held = (held[0], held[1], held[2][: len(tokens)])
                assert held == (layer, chain[number], tokens), (
                    f"{turn.request.turn_id} reads wrong KV: block {number}, layer {layer}: {held}"
                )

    def _verify_adapter(self, turn: Turn, line: int, read: dict[int, Content]) -> str:
        """The pages of a row's adapter hold, in every layer, its own image, or helpers `read` it
        for them in the arena; returns its hash."""
        adapter = turn.adapter.ref
        if adapter is None:
            assert line == NO_LINE, f"{turn.request.turn_id} runs on an adapter"
            return NO_ADAPTER
        image = self._images[line]
        assert image.adapter_hash == adapter.adapter_hash, (
            f"{turn.request.turn_id} runs on another adapter"
        )
        for number, pages in enumerate(image.pages.tolist()):
            for layer, page in enumerate(pages):
                held = read.get(page, self._memory.get(page))
                assert held == _image_page(adapter, layer, number), (
                    f"{turn.request.turn_id} runs on other weights:"
                    f" block {number}, layer {layer}: {held}"
                )
        return adapter.adapter_hash

    def _root(self, turn: Turn) -> Origin:
        adapter_hash = NO_ADAPTER if turn.adapter.ref is None else turn.adapter.ref.adapter_hash
        return (turn.request.tenant, self._model.fingerprint, adapter_hash)


def _image_page(adapter: AdapterRef, layer: int, number: int) -> Content:
    return (layer, (IMAGE, adapter.adapter_hash), (number,))
