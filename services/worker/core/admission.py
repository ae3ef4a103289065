"""When the prompts that wait join the step that is being planned.

The prompts that wait are a batch whose deadline is that of its most urgent first token. A prompt in
a step keeps every decode of that step waiting, so prompts are best computed together and late: a
turn is not slowed by prompts that were computed before its own first token, and until then other
turns come to their end. A batch therefore stays closed until its frontrun moment: the last one at
which it and one more prompt still make the deadline. Then it is open, to later arrivals too, until
a step leaves nobody waiting.

Source: deferred batch scheduling, section 3.1, with the prompts' tokens for the batch size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from services.worker.core.history import num_pages_wanted
from services.worker.core.limits import AdmissionName
from services.worker.core.turn import Turn, TurnState

if TYPE_CHECKING:
    from services.worker.core.engine import EngineCore

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


Policy: TypeAlias = Callable[["EngineCore", int, int], Decision]


def decide(core: "EngineCore", num_decodes: int, now_ns: int) -> Decision:
    """What a step with `num_decodes` decodes does with prompts, by the engine's policy."""
    return POLICIES[core.limits.prefill_admission](core, num_decodes, now_ns)


def on_first_token(core: "EngineCore", turn: Turn, now_ns: int) -> None:
    """Learn from how punctual a first token is, unless the turn could never have been in time."""
    target_ns = 0 if turn.num_generated_before else _target_ns(core, turn)
    num_tokens = turn.num_prompt - turn.num_cached
    if target_ns and _prefill_ns(core, num_tokens, 0) <= target_ns:
        is_late = now_ns > turn.arrived_at_ns + target_ns
        core.punctuality.on_first_token(is_late=is_late)


def _eager(core: "EngineCore", num_decodes: int, now_ns: int) -> Decision:
    """Whoever waits is admitted as soon as there is room."""
    return Decision(opens=True)


def _deferred(core: "EngineCore", num_decodes: int, now_ns: int) -> Decision:
    """The batch opens at its frontrun moment, and at once where nobody gains by its waiting."""
    ready = [turn for turn in core.waiting if turn.state is not TurnState.STAGING]
    under_way = [turn for turn in core.running if turn.num_computed < len(turn.tokens) - 1]
    is_open = any(turn.is_called for turn in ready)
    if ready and not is_open:
        is_open = now_ns >= _frontrun_ns(core, ready, under_way, num_decodes, now_ns)
    if is_open:
        for turn in ready:
            turn.is_called = True
    batch = under_way + ready if is_open else under_way
    num_kept = TOKENS_KEPT if _can_end_together(core, batch, num_decodes, now_ns) else 0
    return Decision(is_open, num_kept)


POLICIES: dict[AdmissionName, Policy] = {"eager": _eager, "deferred": _deferred}


def _frontrun_ns(
    core: "EngineCore", ready: list[Turn], under_way: list[Turn], num_decodes: int, now_ns: int
) -> int:
    """When the batch of these turns opens; not after `now_ns` if waiting is of no use to it.

    A turn that is bound to be late, resumes, or has no target gains nothing by waiting, so the
    batch opens at once; its place in the queue stays what it is, so that it delays the others no
    more than eager admission would.
    """
    if not num_decodes or not core.costs.is_known or _is_pressed(core, ready):
        return now_ns
    reserve = core.punctuality.reserve
    due_ns = min(_deadline_ns(core, turn, reserve) for turn in ready)
    if due_ns <= now_ns:
        return now_ns
    num_waiting = sum(_num_to_compute(turn) for turn in ready)
    num_under_way = sum(_num_to_compute(turn) for turn in under_way)
    one_more = num_waiting // len(ready)
    work_ns = _prefill_ns(core, num_under_way + num_waiting + one_more, num_decodes)
    next_look_ns = core.costs.step_ns(0, num_decodes)
    return due_ns - work_ns - _load_ns(core, ready) - next_look_ns


def _can_end_together(core: "EngineCore", batch: list[Turn], num_decodes: int, now_ns: int) -> bool:
    """Whether a batch that takes more than this step can end as one, in time for all its turns."""
    if not num_decodes or not core.costs.is_known:
        return False
    num_tokens = sum(_num_to_compute(turn) for turn in batch)
    if num_tokens <= core.limits.prefill_tokens_max or _is_pressed(core, batch):
        return False
    learnt = core.punctuality.reserve - RESERVE_MIN  # the least is there to be used by now
    reserve = learnt / (1.0 - RESERVE_MIN)
    deadline_ns = min(_deadline_ns(core, turn, reserve) for turn in batch)
    return now_ns + _prefill_ns(core, num_tokens, num_decodes) <= deadline_ns


def _is_pressed(core: "EngineCore", turns: list[Turn]) -> bool:
    """Whether these turns take all the places or pages that are left: more could not join."""
    waiting = [turn for turn in turns if turn.state is not TurnState.RUNNING]
    if len(waiting) >= core.limits.turns_running_max - len(core.running):
        return True
    num_wanted = sum(num_pages_wanted(core, turn) for turn in turns)
    return num_wanted + len(core.running) * core.pool.num_layers > core.pool.num_available


def _target_ns(core: "EngineCore", turn: Turn) -> int:
    return core.limits.slo_ttft_ns if turn.slo_ttft_ns is None else turn.slo_ttft_ns


def _deadline_ns(core: "EngineCore", turn: Turn, reserve: float) -> int:
    """When the first token is due, with a share `reserve` of the target left unused; at once
    without a target, or if there were tokens before."""
    target_ns = 0 if turn.num_generated else _target_ns(core, turn)
    return turn.arrived_at_ns + int((1.0 - reserve) * target_ns)


def _num_to_compute(turn: Turn) -> int:
    """Tokens that neither the pool nor a stage has."""
    num_blocks = turn.staged_from + turn.staged.num_blocks if turn.staged is not None else 0
    return len(turn.tokens) - max(turn.num_computed, num_blocks * turn.block_tokens)


def _prefill_ns(core: "EngineCore", num_tokens: int, num_decodes: int) -> int:
    return core.costs.prefill_ns(num_tokens, num_decodes, core.limits.prefill_tokens_max)


def _load_ns(core: "EngineCore", turns: list[Turn]) -> int:
    """Loading what is staged for these turns, which starts when they are admitted."""
    num_blocks = sum(turn.staged.num_blocks for turn in turns if turn.staged is not None)
    num_bytes = num_blocks * core.pool.num_layers * core.page_bytes
    return int(num_bytes * 1e9 / core.estimates.load_bytes_per_s)
