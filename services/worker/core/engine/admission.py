"""When the prompts that wait join the step that is being planned.

The prompts that wait are a batch whose deadline is that of its most urgent first token. A prompt in
a step keeps every decode of that step waiting, so prompts are best computed together and late: a
turn is not slowed by prompts that were computed before its own first token, and until then other
turns come to their end. A batch therefore stays closed until its frontrun moment: the last one at
which it and one more prompt still make the deadline. Then it is open, to later arrivals too, until
a step leaves no turn waiting.

Source: deferred batch scheduling, section 3.1, with the prompts' tokens for the batch size.
"""

from dataclasses import dataclass, field

from services.worker.core.adapters.adapters import Adapters
from services.worker.core.costs.costs import StepCosts
from services.worker.core.engine_limits import EngineLimits
from services.worker.core.turns.history import History
from services.worker.core.turns.queue import TurnQueue
from services.worker.core.turns.targets import TargetCounts
from services.worker.core.turns.turn import Turn

RESERVE_MIN = 0.2  # for turns that come after a batch was planned and before it opens
RESERVE_GAIN = 0.25  # four late turns in a row make a worker eager
LATE_SHARE = 0.001
TOKENS_KEPT = 2  # the least that still makes the next step's row one of a prompt, not of a decode


@dataclass(frozen=True, slots=True)
class Decision:
    """What one step does with prompts.

    Attributes:
        opens: waiting turns may be admitted.
        num_kept: tokens that every prompt keeps back, so that none ends in this step: those of one
            batch start to decode together.
    """

    opens: bool
    num_kept: int = 0


@dataclass(slots=True)
class Punctuality:
    """How much of a target to leave unused, learnt from the turns that were late.

    A turn that is late adds much to the reserve, one in time takes a little off: it comes to rest
    where one in `1 / LATE_SHARE` is late, and at the whole target, which is eager admission, where
    the worker is too busy for that.

    Attributes:
        reserve: share of each target, from `RESERVE_MIN` to 1.
    """

    reserve: float = RESERVE_MIN

    def on_first_token(self, *, is_late: bool) -> None:
        """A turn has its first token."""
        reserve = self.reserve + RESERVE_GAIN * (is_late - LATE_SHARE)
        self.reserve = min(max(reserve, RESERVE_MIN), 1.0)


EAGER = Decision(opens=True)  # waiting turns are admitted as soon as there is room


@dataclass(frozen=True, slots=True)
class PromptView:
    """A prompt that is not computed, or not all of it.

    Attributes:
        num_tokens: to compute: neither pool nor stage has them.
        num_pages: that it still needs.
        num_staged_blocks: to load when it is admitted.
        target_ns: from `arrived_at_ns` to its first token; 0: none, or it had tokens before.
        admitted_by_deadline: the batch that it waits in has opened.
    """

    num_tokens: int
    num_pages: int
    num_staged_blocks: int
    arrived_at_ns: int
    target_ns: int
    admitted_by_deadline: bool

    def deadline_ns(self, reserve: float) -> int:
        """When its first token is due, with a share `reserve` of the target left unused."""
        return self.arrived_at_ns + int((1.0 - reserve) * self.target_ns)


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """What a step could be, as `decide` sees it.

    Attributes:
        ready: waiting prompts that could join.
        under_way: prompts that run.
        num_decodes: other rows of the step.
        num_places: turns that could still run.
        num_pages: pages beyond those that running turns may soon take.
        budget: prompt tokens in one step.
        load_block_ns: of one staged block, all its layers.
        reserve: see `Punctuality`.
    """

    now_ns: int
    ready: tuple[PromptView, ...]
    under_way: tuple[PromptView, ...]
    num_decodes: int
    num_places: int
    num_pages: int
    budget: int
    load_block_ns: float
    reserve: float
    costs: StepCosts

    def prefill_ns(self, num_tokens: int) -> int:
        """So many prompt tokens, beside the decodes."""
        return self.costs.prefill_ns(num_tokens, self.num_decodes, self.budget)


def decide(view: AdmissionView) -> Decision:
    """The batch opens at its frontrun moment, and at once where waiting gains nothing."""
    is_open = any(prompt.admitted_by_deadline for prompt in view.ready)
    if view.ready and not is_open:
        is_open = view.now_ns >= _frontrun_ns(view)
    batch = view.under_way + view.ready if is_open else view.under_way
    num_kept = TOKENS_KEPT if _can_end_together(view, batch) else 0
    return Decision(is_open, num_kept)


def _frontrun_ns(view: AdmissionView) -> int:
    """When the batch opens; not after `now_ns` if waiting is of no use to it.

    A turn that is bound to be late, resumes, or has no target gains nothing by waiting, so the
    batch opens at once; its place in the queue stays what it is, so that it delays the others no
    more than eager admission would.
    """
    if not view.num_decodes or not view.costs.is_known or _is_pressed(view, view.ready, ()):
        return view.now_ns
    due_ns = min(prompt.deadline_ns(view.reserve) for prompt in view.ready)
    if due_ns <= view.now_ns:
        return view.now_ns
    num_waiting = sum(prompt.num_tokens for prompt in view.ready)
    num_under_way = sum(prompt.num_tokens for prompt in view.under_way)
    one_more = num_waiting // len(view.ready)
    work_ns = view.prefill_ns(num_under_way + num_waiting + one_more)
    load_ns = int(sum(prompt.num_staged_blocks for prompt in view.ready) * view.load_block_ns)
    next_look_ns = view.costs.step_ns(0, view.num_decodes)
    return due_ns - work_ns - load_ns - next_look_ns


def _can_end_together(view: AdmissionView, batch: tuple[PromptView, ...]) -> bool:
    """Whether a batch that takes more than this step can end as one, in time for all its turns."""
    if not view.num_decodes or not view.costs.is_known:
        return False
    num_tokens = sum(prompt.num_tokens for prompt in batch)
    joining = view.ready if len(batch) > len(view.under_way) else ()
    if num_tokens <= view.budget or _is_pressed(view, joining, view.under_way):
        return False
    learnt = view.reserve - RESERVE_MIN  # the least is there to be used by now
    reserve = learnt / (1.0 - RESERVE_MIN)
    deadline_ns = min(prompt.deadline_ns(reserve) for prompt in batch)
    return view.now_ns + view.prefill_ns(num_tokens) <= deadline_ns


def _is_pressed(
    view: AdmissionView, joining: tuple[PromptView, ...], running: tuple[PromptView, ...]
) -> bool:
    """Whether these prompts take all the places or pages that are left: more could not join."""
    if len(joining) >= view.num_places:
        return True
    return sum(prompt.num_pages for prompt in (*joining, *running)) > view.num_pages


@dataclass(slots=True)
class Admission:
    """Decides for one engine, on what is known of its turns.

    Attributes:
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

    def num_pages_wanted(self, turn: Turn) -> int:
        """Pages that a turn still needs to begin: for its tokens and its adapter."""
        num_pages = self.history.num_pages_wanted(turn)
        return num_pages + self.adapters.num_pages_wanted(turn.adapter)

    def _prompt_view(self, turn: Turn) -> PromptView:
        staged = turn.cache.prefix.staged
        return PromptView(
            num_tokens=len(turn.tokens) - turn.num_in_sight,
            num_pages=self.num_pages_wanted(turn),
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
