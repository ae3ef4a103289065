"""Steps that were planned and have not landed: when to plan the next one, and what they take."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from services.worker.core.adapters.streaming import StartModes
from services.worker.core.costs.costs import StepCosts
from services.worker.core.engine.planner import PlannedStep
from services.worker.core.engine_limits import Estimates
from services.worker.core.kv.pages import Block, PagePool
from services.worker.core.step import StepPlan, StepResult


@dataclass(slots=True)
class DeviceTime:
    """Attributes:
    busy_ns: in steps.
    idle_ns: between steps, where the next one could have followed at once.
    """

    busy_ns: int = 0
    idle_ns: int = 0
    _ended_at_ns: int = 0  # of the last step; 0 where the next one could not follow it

    def on_step(self, started_at_ns: int, duration_ns: int) -> None:
        """A step ran, by the device's clock; `started_at_ns` is 0 where it was not measured."""
        self.busy_ns += duration_ns
        if not started_at_ns:
            return
        if self._ended_at_ns:
            self.idle_ns += max(started_at_ns - self._ended_at_ns, 0)
        self._ended_at_ns = started_at_ns + duration_ns

    def on_nothing_to_run(self) -> None:
        """The device waits for work."""
        self._ended_at_ns = 0


STEP_MIN_NS = 30_000_000_000
STEP_FACTOR = 20
STEP_UNKNOWN_NS = 600_000_000_000  # while this model's speed at such steps is not known
LEAD_MIN_NS = 3_000_000  # how long before a step is to land the next one is planned
LEAD_SHARE = 0.1  # of the step, in addition: predictions are off by about that


@dataclass(slots=True)
class StepsInFlight:
    """Attributes:
    steps_ahead_max: steps that may be planned while another one runs.
    flights: in order.
    is_short: turns need pages that can be taken only when nothing is in flight.
    """

    pool: PagePool
    costs: StepCosts
    estimates: Estimates
    start_modes: StartModes
    steps_ahead_max: int
    device_time: DeviceTime = field(default_factory=DeviceTime, init=False)
    flights: "deque[PlannedStep]" = field(default_factory=deque, init=False)
    is_short: bool = field(default=False, init=False)

    def plan_at_ns(self) -> int | None:
        """When to plan the next step: at any time if nothing is in flight, a little before one in
        flight is to land; None: one has to land first."""
        if not self.flights:
            return 0
        if self.is_short or len(self.flights) > self.steps_ahead_max:
            return None
        first = self.flights[0]
        return first.ends_at_ns - LEAD_MIN_NS - int(LEAD_SHARE * first.takes_ns)

    def starts_at_ns(self, now_ns: int) -> int:
        """When a step that is planned now will probably begin."""
        assert len(self.flights) <= self.steps_ahead_max, "too many steps are in flight"
        return max([now_ns, *(planned.ends_at_ns for planned in self.flights)])

    def add(self, planned: PlannedStep, starts_at_ns: int, now_ns: int) -> None:
        """A step was planned."""
        for turn in planned.turns:
            if turn.trace.first_step_at_ns is None:
                turn.trace.first_step_at_ns = now_ns
        planned.takes_ns = self._predicted_ns(planned)
        planned.ends_at_ns = starts_at_ns + planned.takes_ns
        self.flights.append(planned)

    def land(self, result: StepResult, now_ns: int) -> PlannedStep:
        """The first step in flight has run: the estimates learn from it."""
        planned = self.flights.popleft()
        self._measure(planned, result)
        for later in self.flights:
            later.takes_ns = self._predicted_ns(later)
            later.ends_at_ns = now_ns + later.takes_ns
        return planned

    def retire(self, blocks: list[Block]) -> None:
        """Turns need these blocks no more; steps in flight may still read them."""
        if self.flights:
            self.flights[-1].retired += blocks
        else:
            self.pool.give_back(blocks)

    def on_nothing_to_run(self) -> None:
        """No further step can be planned now."""
        if not self.flights:
            self.device_time.on_nothing_to_run()

    def limit_ns(self, plan: StepPlan) -> int:
        """How long a step may run before it counts as stuck: far longer than any that is not."""
        if not self.costs.knows(plan.num_prefill_tokens):
            return STEP_UNKNOWN_NS
        predicted_ns = self.costs.step_ns(plan.num_prefill_tokens, plan.num_decodes)
        return max(STEP_MIN_NS, STEP_FACTOR * predicted_ns)

    def _measure(self, planned: PlannedStep, result: StepResult) -> None:
        plan = planned.plan
        self.device_time.on_step(result.started_at_ns, result.duration_ns)
        num_prefill = planned.num_prefill
        if result.assist_ns:
            assisted = np.isin(plan.adapters, list(plan.assists))
            num_assisted = int(plan.lengths[assisted].sum())
            self.start_modes.assists.add(num_assisted, result.assist_ns)
        busy_ns = result.duration_ns - sum(result.stall_ns) - result.assist_ns
        self.costs.on_step(num_prefill, planned.num_decodes, busy_ns, planned.lora)
        self.estimates.on_prefill(num_prefill, busy_ns)

    def _predicted_ns(self, planned: PlannedStep) -> int:
        if not self.costs.is_known:
            return 0
        num_lora_bytes = planned.lora.num_bytes
        busy_ns = self.costs.step_ns(planned.num_prefill, planned.num_decodes, num_lora_bytes)
        return busy_ns + planned.stall_ns
