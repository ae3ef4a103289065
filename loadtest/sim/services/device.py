"""A simulated worker's device: an executor whose steps take simulated time and whose pages can be
checked.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Literal, TypeAlias

from loadtest.sim.arena import SimArena
from loadtest.sim.memory import Content
from loadtest.sim.services.copying import Copies, Host
from loadtest.sim.services.forward import Asked, Forward, image_of
from loadtest.sim.services.model import BREAKER, KILLER, LORA_CARD, Model
from loadtest.sim.timeline import US
from services.worker.core.step import ImageEntry, Sampled, StepPlan, StepResult
from services.worker.device.base.executor import Launched, ModelInfo, RecordsNothing
from services.worker.device.base.tables import BlockTables
from services.worker.ports import OnMoved
from shared.arena import PageState
from shared.ids import TurnId

Breaks: TypeAlias = Literal["", "lost", "hung"]

ADAPTER_STALL_NS = 20_000 * US  # a pass waits so long for an adapter's layer
BREAKS_AFTER_NS = 1_000 * US  # into a step, a device breaks that is lost in it
NONSENSE = 21  # what a row gives whose turn's row before it failed
NO_HELPERS_SHARE = 0.2  # of steps
ASSIST_TOKENS = (0, 8, 100)  # that helpers take in a step


class DeviceLost(RuntimeError):
    """As CUDA's errors: nothing is computed any more."""


@dataclass(slots=True, eq=False)
class SimStep:
    """A step that runs, or waits for the one before it.

    Attributes:
        on_over: called with its result, or with what broke it.
        asked: what each row's client asked for.
        awaited: pool pages that it waits for, with the rows that do.
        streamed: pool pages of adapters that it waits for.
        has_helpers: they compute what of adapters is not here.
        arena: when it began.
        read: by pool page, what helpers read instead of it.
        sources: by row, where in the arena that was, and under which generations.
        late: pool pages that some of its rows waited for long enough.
        void: rows whose turn failed in the step before: their results must not be used.
    """

    plan: StepPlan
    asked: list[Asked]
    on_over: Callable[[StepResult | DeviceLost], None] = lambda result: None
    awaited: dict[int, list[int]] = field(default_factory=dict)
    streamed: set[int] = field(default_factory=set)
    has_helpers: bool = False
    arena: SimArena | None = None
    read: dict[int, Content] = field(default_factory=dict)
    sources: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    new: list[list[int]] = field(default_factory=list)  # tokens of each row
    started_at_ns: int = 0
    is_computed: bool = False

    def result(self) -> StepResult:
        raise AssertionError("no thread waits in the simulation")


class Device(RecordsNothing):
    """Executor of one model.

    Args:
        hardware: which kind it is: that decides between tokens that are close.
        asked_by: what a turn's client asked for.

    Attributes:
        num_assisted: rows for which helpers read the arena.
        num_streamed: rows that began before all of their adapter was here.
        breaks: what the next step that begins does to it, or the last one did: it is `lost` or
            `hung`; empty: nothing.
        is_broken: a step did that.
    """

    prefill_tokens_max = 16

    def __init__(
        self,
        host: Host,
        model: Model,
        hardware: int,
        num_pages: int,
        asked_by: Callable[[TurnId], Asked],
        random: Random,
        on_moved: OnMoved,
    ) -> None:
        self._host = host
        self._model = model
        self._hardware = hardware
        self._asked_by = asked_by
        self._random = random
        self.info = _info(model, num_pages)
        self.mover = self.builder = Copies(host, model, self, random, on_moved)
        self.grammars = self
        self.assist_tokens = random.choice(ASSIST_TOKENS)
        self._tables = BlockTables(model.num_layers)
        self._forward = Forward(model, self.mover.memory, self._tables)
        self._steps: deque[SimStep] = deque()  # the first one runs
        self._images: dict[int, ImageEntry] = {}  # by line of the adapter tables
        self.num_assisted = 0
        self.num_streamed = 0
        self.breaks: Breaks = ""
        self.is_broken = False

    @property
    def is_busy(self) -> bool:
        return bool(self._steps)

    def prepare(self, grammar: str, *, has_open_keys: bool = False) -> "Future[str]":
        raise AssertionError("no turn has a grammar")

    def check_device(self) -> None:
        """Raises:
        DeviceLost: it does not compute any more.
        """
        if self.is_broken:
            raise DeviceLost("CUDA error: an illegal memory access was encountered")

    def close(self) -> None:
        """Nothing is held."""

    def launch(self, plan: StepPlan) -> Launched:
        """Run a step after those that were launched before."""
        if self.breaks == "lost":
            self.check_device()
        histories, adapters = plan.awaited.values(), plan.streams.values()
        awaited = {p for layers in (*histories, *adapters) for pages in layers for p in pages}
        assert not awaited & self.mover.late, "a load that was abandoned is waited for again"
        step = SimStep(plan, [self._asked_by(turn_id) for turn_id in plan.turn_ids])
        self._steps.append(step)
        if len(self._steps) == 1:
            self._begin(frozenset())
        return step

    # Loads that steps wait for.

    def is_awaited(self, page: int) -> bool:
        return any(page in step.awaited for step in self._steps)

    def on_called_back(self, page: int) -> None:
        for step in self._steps:
            step.late.discard(page)

    def on_landed(self, page: int, *, is_good: bool) -> None:
        step = self._steps[0] if self._steps else None
        if step is None:
            return
        step.late.discard(page)
        if page in step.awaited:
            rows = step.awaited.pop(page)
            if not is_good:
                step.failed.update(rows)
            self._end_if_over()

    # Steps.

    def _begin(self, void_slots: frozenset[int]) -> None:
        """Run the first step that waits. What it carries over is chosen by now, but for the turns
        in these slots."""
        if self.breaks:
            self._break()
            return
        host, model, step = self._host, self._model, self._steps[0]
        plan = step.plan
        step.started_at_ns = host.now_ns
        step.has_helpers = self._random.random() >= NO_HELPERS_SHARE
        step.arena = self.mover.arena
        self._tables.enter(plan.entries)
        self._images.update({image.line: image for image in plan.images})
        new, starts = self._tables.tokens(plan).tolist(), plan.query_starts.tolist()
        slots: list[int] = plan.slots.tolist()
        following = set(plan.following.tolist())
        for index, row in enumerate(plan.rows()):
            slot = slots[index]
            step.new.append(new[starts[index] : starts[index + 1]])
            if slot in void_slots:
                assert index in following, "a slot was given away while a step had a row of it"
                step.void.add(index)
                self._forward.spoil(slot, row)
                continue
            if index in plan.awaited:
                num_blocks = -(-row.start // model.block_tokens)
                history = self._tables.pages[:, slot, :num_blocks]
                self._await(history.ravel().tolist(), index, step)
            else:
                self._forward.write(slot, row, step.new[index], step.asked[index])
            if (line := int(plan.adapters[index])) in plan.streams:
                self._stream(line, index, step)
        duration_ns = model.step_ns + model.token_ns * plan.num_tokens
        if any(asked.sampling.seed == KILLER for asked in step.asked):
            host.later(self._random.randrange(duration_ns), host.die_of_poison)
        host.later(duration_ns, self._computed)

    def _break(self) -> None:
        """The step that begins never ends, or the device is lost in it."""
        self.is_broken = True
        if self.breaks == "lost":
            self._host.later(BREAKS_AFTER_NS, self._lose)

    def _lose(self) -> None:
        while self._steps:
            self._steps.popleft().on_over(DeviceLost("CUDA error: unspecified launch failure"))

    def _stream(self, line: int, index: int, step: SimStep) -> None:
        """A row whose adapter is loading waits for what helpers do not read in the arena."""
        self.num_streamed += 1
        pages: list[int] = self._images[line].pages.ravel().tolist()
        assert not self.mover.building.intersection(pages), "what is built is not streamed"
        read = self._assist(line, index, step)
        away = [page for page in pages if page not in read]
        self._await(away, index, step)
        step.streamed.update(away)

    def _assist(self, line: int, row: int, step: SimStep) -> set[int]:
        """Pool pages that are not here and that helpers read in the arena instead."""
        source, arena = step.plan.assists.get(line), step.arena
        is_of_epoch = source is not None and source.epoch == self.mover.epoch
        if source is None or arena is None or not is_of_epoch or not step.has_helpers:
            return set()
        self.num_assisted += 1
        read: set[int] = set()
        for number, pages in enumerate(self._images[line].pages.tolist()):
            for layer, page in enumerate(pages):
                place = source.pages[layer][number], source.generations[layer][number]
                if page in self.mover.loading and arena.promise(*place) is PageState.READY:
                    step.read[page] = arena.content(place[0])
                    step.sources.setdefault(row, []).append(place)
                    read.add(page)
        return read

    def _await(self, pages: list[int], row: int, step: SimStep) -> None:
        for page in pages:
            if page in self.mover.loading:
                step.awaited.setdefault(page, []).append(row)
            elif page not in self.mover.memory:
                step.failed.add(row)

    def _computed(self) -> None:
        step = self._steps[0]
        step.is_computed = True
        if step.awaited:
            self._host.later(ADAPTER_STALL_NS, partial(self._abandon, step, step.streamed))
            for row, patience_ns in step.plan.patience_ns.items():
                self._host.later(patience_ns, partial(self._abandon_row, step, row))
        self._end_if_over()

    def _abandon(self, step: SimStep, pages: set[int]) -> None:
        """Pages keep the pass waiting for too long."""
        if self._steps and self._steps[0] is step:
            for page in pages & step.awaited.keys():
                step.failed.update(step.awaited.pop(page))
                step.late.add(page)
            self._end_if_over()

    def _abandon_row(self, step: SimStep, row: int) -> None:
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
        arena = step.arena
        for index, sources in step.sources.items():  # what helpers read may have changed meanwhile
            if arena and any(arena.promise(*place) is not PageState.READY for place in sources):
                step.failed.add(index)
        void_slots: set[int] = set()
        result = StepResult([], step.failed, duration_ns=self._host.now_ns - step.started_at_ns)
        result.stall_ns = [0] * self._model.num_layers
        for index in range(step.plan.num_rows):
            if step.asked[index].sampling.seed == BREAKER:
                result.broken[index] = "it cannot be computed"
        slots: list[int] = step.plan.slots.tolist()
        for index, row in enumerate(step.plan.rows()):
            if index in step.failed or index in result.broken or index in step.void:
                void_slots.add(slots[index])
                self._forward.spoil(slots[index], row)
                is_computed = index in step.void and index not in step.failed
                result.sampled.append(Sampled(NONSENSE) if is_computed else None)
                continue
            asked = step.asked[index]
            if index in step.plan.awaited:  # behind the tokens that have come meanwhile
                self._forward.write(slots[index], row, step.new[index], asked)
            tokens = self._forward.read(slots[index], row, asked)
            image = image_of(self._images, int(step.plan.adapters[index]))
            self._forward.check_adapter(row.turn_id, asked, image, step.read)
            sampled = None
            if row.is_sampled:
                token = self._model.next_token(tokens, self._hardware, asked.adapter_hash)
                sampled = Sampled(token)
            result.sampled.append(sampled)
        self._tables.keep(step.plan, result.sampled)
        self._steps.popleft()
        self.mover.late |= step.late
        if self._steps:
            self._begin(frozenset(void_slots))
        step.on_over(result)


def _info(model: Model, num_pages: int) -> ModelInfo:
    return ModelInfo(
        model_id=model.model_id,
        source="",
        fingerprint=model.fingerprint,
        max_model_len=model.max_model_len,
        num_layers=model.num_layers,
        page_bytes=model.page_bytes * (2 if model.is_rounded else 1),
        stored_page_bytes=model.page_bytes,
        num_pages=num_pages,
        vocab_size=model.vocab_size,
        end_token_ids=frozenset({model.end_token}),
        block_tokens=model.block_tokens,
        lora=LORA_CARD,
    )
