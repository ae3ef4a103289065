"""What a finished step means for its turns: tokens, ends, blocks that others may now use."""

from typing import TYPE_CHECKING

from services.worker.core.admission import on_first_token
from services.worker.core.effects import (
    Effect,
    Emit,
    Ended,
    ReportSoon,
    TurnAccount,
)
from services.worker.core.history import release_holds
from services.worker.core.step import Sampled, StepPlan, StepResult
from services.worker.core.turn import Turn
from shared.errors import SymphonyError
from shared.messages import FinishReason, TurnDelta, TurnEnd, TurnStart

if TYPE_CHECKING:
    from services.worker.core.engine import EngineCore


def register_blocks(core: "EngineCore", turn: Turn) -> None:
    """Full blocks just computed enter the cache, so that others may run on them."""
    if turn.is_private:
        return
    pool = core.pool
    for index in range(turn.num_shared, turn.num_computed // turn.block_tokens):
        key, block = turn.key(index), turn.blocks[index]
        twin = pool.blocks.get(key)
        if twin is not None and not (pool.is_whole(twin) or twin.refs or twin.loading):
            pool.drop(twin)  # a remnant: the whole block takes its place
            twin = None
        if twin is None:
            pool.publish(block, key, turn.owner)
            turn.share(block)
            core.writeback.on_computed(block, turn.parent_key(index), turn.block(index))
        elif twin.lost or twin.loading or not pool.is_whole(twin):
            return  # the key is taken by a block that cannot stand in: this one stays the turn's
        else:
            pool.acquire(twin)
            turn.share(twin)
            pool.give_back([block])


def take_token(core: "EngineCore", turn: Turn, sampled: Sampled, now_ns: int) -> list[Effect]:
    """Append a sampled token, tell the frontend, and end the turn if it was the last."""
    turn.tokens.append(sampled.token)
    finish = _finish(turn, sampled.token, core.end_token_ids, core.tokens_max)
    is_first = turn.first_token_at_ns is None
    started_at_ns = turn.first_step_at_ns or now_ns
    if is_first:
        turn.first_token_at_ns = now_ns
        on_first_token(core, turn, now_ns)
    delta = TurnDelta(
        turn_id=turn.turn_id,
        attempt=turn.attempt,
        index=turn.num_generated - 1,
        tokens=[sampled.token],
        finish=finish,
        logprobs=None if sampled.logprobs is None else [sampled.logprobs],
        prompt_logprobs=(turn.prompt_logprobs or None) if is_first else None,
        cached_tokens=min(turn.num_cached, turn.num_prompt) if is_first else None,
        queue_ns=started_at_ns - turn.arrived_at_ns if is_first else None,
        prefill_ns=now_ns - started_at_ns if is_first else None,
    )
    effects: list[Effect] = [Emit(turn.frontend_id, delta)]
    if is_first and turn.was_lost:
        effects.append(ReportSoon())
    return effects if finish is None else effects + end_turn(core, turn, finish)


def refuse(turn: Turn, code: str, message: str) -> list[Effect]:
    """Answer a turn that cannot be taken."""
    return [_error(turn, code, message), ended(turn, "error")]


def refuse_start(start: TurnStart, error: SymphonyError) -> list[Effect]:
    """Answer a start of which no turn can be made."""
    delta = TurnDelta(
        turn_id=start.turn_id, attempt=start.attempt, index=0, finish="error", code=error.code,
        message=error.message,
    )  # fmt: skip
    end = TurnEnd(turn_id=start.turn_id, attempt=start.attempt, reason="error")
    return [Emit(start.frontend_id, delta), Ended(end)]


def fail_turn(core: "EngineCore", turn: Turn, code: str, message: str) -> list[Effect]:
    """End a turn that cannot be computed."""
    return [_error(turn, code, message), *end_turn(core, turn, "error")]


def lose_blocks(turn: Turn) -> None:
    """A turn cannot be computed: what it alone ran on may be the reason, so nobody is to run on
    that. What others run on as well is good enough for them.
    """
    for block in turn.blocks[: turn.num_shared]:
        if block.refs == 1:
            block.lost = True


def _error(turn: Turn, code: str, message: str) -> Emit:
    return Emit(
        turn.frontend_id,
        TurnDelta(
            turn_id=turn.turn_id,
            attempt=turn.attempt,
            index=turn.num_generated,
            finish="error",
            code=code,
            message=message,
        ),
    )


def end_turn(core: "EngineCore", turn: Turn, reason: FinishReason) -> list[Effect]:
    """A turn leaves; its blocks stay as clean copies for whoever needs them or their room."""
    del core.turns[turn.turn_id]
    core.leave(turn)
    return [*release_holds(core, turn), ended(turn, reason)]


def ended(turn: Turn, reason: FinishReason) -> Ended:
    """How an attempt is told to be over."""
    return Ended(
        TurnEnd(turn_id=turn.turn_id, attempt=turn.attempt, reason=reason),
        TurnAccount(
            request_id=turn.request_id,
            num_prompt=turn.num_prompt,
            num_cached=min(turn.num_cached, turn.num_prompt),
            num_generated=turn.num_generated,
        ),
    )


def measure(core: "EngineCore", plan: StepPlan, result: StepResult) -> None:
    """Let the speed estimates learn from a step."""
    num_prefill = plan.num_prefill_tokens
    busy_ns = result.duration_ns - sum(result.stall_ns)
    core.costs.on_step(num_prefill, plan.num_decodes, busy_ns)
    if num_prefill:
        core.estimates.on_prefill(num_prefill, busy_ns)
    else:
        core.estimates.on_decode(result.duration_ns)


def _finish(
    turn: Turn, token: int, end_token_ids: frozenset[int], tokens_max: int
) -> FinishReason | None:
    sampling = turn.sampling
    if turn.num_generated > sampling.min_tokens or not sampling.min_tokens:
        is_end = token in end_token_ids and not sampling.ignore_eos
        if is_end or token in sampling.stop_token_ids:
            return "stop"
    is_full = len(turn.tokens) >= tokens_max
    return "length" if is_full or turn.num_generated >= sampling.max_tokens else None
