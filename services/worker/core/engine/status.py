"""What an engine reports of itself: one snapshot, for the worker's report and its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.worker.core.adapters.adapters import Adapters
from services.worker.core.adapters.stats import AdapterStatus
from services.worker.core.costs.step_models import StepModel
from services.worker.core.engine.engine import EngineCore
from services.worker.core.turns.targets import Outcome, Target
from shared.ids import ModelId
from shared.wire.messages import ModelRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """Pages of the KV pool.

    Attributes:
        num_takeable: of idle blocks, that may be evicted.
        num_unsafe: of those, pages without a copy below.
        num_wanted: that turns which wait will take.
    """

    num_pages: int
    num_free: int
    num_takeable: int
    num_unsafe: int
    num_wanted: int = 0

    def room(self, model_id: ModelId, num_layers: int, num_turns: int) -> ModelRoom:
        """As a scheduler is to know it.

        Args:
            num_turns: held, running or waiting.
        """
        num_free = self.num_free + self.num_takeable - self.num_wanted
        return ModelRoom(
            model_id=model_id,
            num_turns=num_turns,
            num_blocks=self.num_pages // num_layers,
            num_blocks_free=num_free // num_layers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTotals:
    """Counted since the start.

    Attributes:
        num_prefix_queries, num_prefix_hits: reusable blocks that turns came with, and those of them
            that did not have to be computed.
        num_load_failures: pages that could not be loaded.
        busy_ns, idle_ns: of the device: in steps, and between steps that could follow.
        targets: turns by target, and whether it was met.
    """

    num_prefix_queries: int
    num_prefix_hits: int
    num_preemptions: int
    num_pauses: int
    num_load_failures: int
    busy_ns: int
    idle_ns: int
    targets: Mapping[tuple[Target, Outcome], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """One engine, now.

    Attributes:
        tokens_max: tokens, prompt and output together, of a turn on the base model.
        num_waiting_tokens: prompt tokens that are still to be computed.
        step_models: fitted models of what steps with adapters take, by name.
    """

    tokens_max: int
    num_running: int
    num_waiting: int
    num_waiting_tokens: int
    pool: PoolStatus
    totals: EngineTotals
    adapters: AdapterStatus
    step_models: Mapping[str, StepModel]


def status_of(core: EngineCore) -> EngineStatus:
    """A snapshot, for reports and metrics."""
    pool, device_time = core.pool, core.steps.device_time
    return EngineStatus(
        tokens_max=core.tokens_max,
        num_running=len(core.queue.running),
        num_waiting=len(core.queue.waiting),
        num_waiting_tokens=core.queue.num_waiting_tokens,
        pool=PoolStatus(
            num_pages=pool.num_pages,
            num_free=pool.num_free,
            num_takeable=pool.num_takeable,
            num_unsafe=pool.num_unsafe,
            num_wanted=sum(map(core.admission.num_pages_wanted, core.queue.waiting)),
        ),
        totals=EngineTotals(
            num_prefix_queries=core.history.num_prefix_queries,
            num_prefix_hits=core.history.num_prefix_hits,
            num_preemptions=core.planner.num_preemptions,
            num_pauses=core.planner.num_pauses,
            num_load_failures=core.stager.num_failures,
            busy_ns=device_time.busy_ns,
            idle_ns=device_time.idle_ns,
            targets=core.admission.targets.totals,
        ),
        adapters=_adapters_of(core.adapters),
        step_models=core.costs.models.solve(),
    )


def _adapters_of(adapters: Adapters) -> AdapterStatus:
    images = adapters.images.values()
    return AdapterStatus(
        lines_max=adapters.lines_max,
        running=[image.adapter.name for image in images if image.running],
        waiting=[image.adapter.name for image in images if not image.running],
        resident=adapters.resident(),
        num_pages=adapters.num_pages,
        num_failures=adapters.stats.num_failures,
    )
