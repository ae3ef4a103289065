"""Whether waiting turns join the next step: `admission` decides, on what is known of the turns."""

from dataclasses import dataclass, field

from services.worker.core.adapters.adapters import Adapters
from services.worker.core.costs.costs import StepCosts
from services.worker.core.engine.admission import (
    EAGER,
    AdmissionView,
    Decision,
    PromptView,
    Punctuality,
    decide,
)
from services.worker.core.limits import EngineLimits
from services.worker.core.turns.history import History
from services.worker.core.turns.queue import TurnQueue
from services.worker.core.turns.targets import TargetCounts
from services.worker.core.turns.turn import Turn


@dataclass(slots=True)
class Admitting:
    """Attributes:
    punctuality: how much of a target to leave unused.
    targets: which targets were met.
    """

    limits: EngineLimits
    queue: TurnQueue
    history: History
    adapters: Adapters
    costs: StepCosts
    punctuality: Punctuality = field(default_factory=Punctuality, init=False)
    targets: TargetCounts = field(default_factory=TargetCounts, init=False)

    def decide(self, num_decodes: int, now_ns: int) -> Decision:
        """What the next step does with prompts.

        Args:
            num_decodes: rows that the step has already.
        """
        if self.limits.prefill_admission == "eager":
            return EAGER
        ready = [turn for turn in self.queue.waiting if not turn.cache.prefix.is_asked]
        num_running = len(self.queue.running)
        pool = self.history.residency.pool
        view = AdmissionView(
            now_ns=now_ns,
            ready=tuple(map(self._prompt_view, ready)),
            under_way=tuple(map(self._prompt_view, self.queue.prefilling)),
            num_decodes=num_decodes,
            num_places=self.limits.turns_running_max - num_running,
            num_pages=pool.num_available - num_running * pool.num_layers,
            budget=self.limits.prefill_tokens_max,
            load_block_ns=self.history.load_block_ns,
            reserve=self.punctuality.reserve,
            costs=self.costs,
        )
        decision = decide(view)
        if decision.opens:
            for turn in ready:
                turn.targets.admitted_by_deadline = True
        return decision

    def on_first_token(self, turn: Turn, now_ns: int) -> None:
        """Learn from how punctual a first token is, unless the turn could never have been in
        time."""
        target_ns = self._target_ns(turn)
        self.targets.on_first_token(turn, target_ns, now_ns)
        if turn.request.num_generated_before or not target_ns:
            return
        num_tokens = turn.num_prompt - turn.cache.num_cached
        if self.costs.prefill_ns(num_tokens, 0, self.limits.prefill_tokens_max) <= target_ns:
            is_late = now_ns > turn.request.arrived_at_ns + target_ns
            self.punctuality.on_first_token(is_late=is_late)

    def _prompt_view(self, turn: Turn) -> PromptView:
        staged = turn.cache.prefix.staged
        num_pages = self.history.num_pages_wanted(turn)
        return PromptView(
            num_tokens=len(turn.tokens) - turn.num_in_sight,
            num_pages=num_pages + self.adapters.num_pages_wanted(turn.adapter),
            num_staged_blocks=staged.num_blocks if staged is not None else 0,
            arrived_at_ns=turn.request.arrived_at_ns,
            target_ns=0 if turn.num_generated else self._target_ns(turn),
            admitted_by_deadline=turn.targets.admitted_by_deadline,
        )

    def _target_ns(self, turn: Turn) -> int:
        return (
            self.limits.slo_ttft_ns
            if turn.targets.slo_ttft_ns is None
            else turn.targets.slo_ttft_ns
        )
