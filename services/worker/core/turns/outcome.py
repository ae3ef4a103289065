"""What is sent of a turn: its tokens, its end, why it has none."""

from services.worker.core.effects import Effect, Emit, Ended, TurnAccount, TurnTimes
from services.worker.core.step import Sampled
from services.worker.core.turns.turn import Turn
from shared.errors import SymphonyError
from shared.wire.messages import FinishReason, TurnDelta, TurnEnd, TurnStart


def token_delta(
    turn: Turn, sampled: Sampled, finish: FinishReason | None, now_ns: int, *, is_first: bool
) -> TurnDelta:
    """The token that was just appended. The first one has more: on the prompt, and on times."""
    request, logprobs = turn.request, None if sampled.logprobs is None else [sampled.logprobs]
    if not is_first:
        return TurnDelta(
            turn_id=request.turn_id,
            attempt=request.attempt,
            index=turn.num_generated - 1,
            tokens=[sampled.token],
            finish=finish,
            logprobs=logprobs,
        )
    started_at_ns = turn.trace.first_step_at_ns or now_ns
    return TurnDelta(
        turn_id=request.turn_id,
        attempt=request.attempt,
        index=turn.num_generated - 1,
        tokens=[sampled.token],
        finish=finish,
        logprobs=logprobs,
        prompt_logprobs=turn.prompt_logprobs or None,
        cached_tokens=min(turn.cache.num_cached, turn.num_prompt),
        cached_in=turn.cache.cached_in(turn.num_prompt),
        queue_ns=started_at_ns - request.arrived_at_ns,
        prefill_ns=now_ns - started_at_ns,
    )


def finish_reason(turn: Turn, token: int, end_token_ids: frozenset[int]) -> FinishReason | None:
    """Why a turn is over with `token`, its latest; None if it goes on."""
    sampling = turn.request.sampling
    is_end = token in end_token_ids and not sampling.ignore_eos
    can_stop = is_end or token in sampling.stop_token_ids
    if can_stop and (not sampling.min_tokens or turn.num_generated > sampling.min_tokens):
        return "stop"
    return "length" if len(turn.tokens) >= turn.length_max else None


def ended(turn: Turn, reason: FinishReason) -> Ended:
    """The end of an attempt, for its reports."""
    num_computed = turn.num_prompt - min(turn.cache.num_cached, turn.num_prompt)
    return Ended(
        TurnEnd(
            turn_id=turn.request.turn_id,
            attempt=turn.request.attempt,
            reason=reason,
            num_generated=turn.num_generated,
        ),
        TurnAccount(
            request_id=turn.request.request_id,
            num_prompt=turn.num_prompt,
            num_computed=0 if turn.trace.first_step_at_ns is None else num_computed,
            num_generated=turn.num_generated,
        ),
        times_of(turn) if turn.trace.context else None,
    )


def times_of(turn: Turn) -> TurnTimes:
    """For its trace."""
    return TurnTimes(
        arrived_at_ns=turn.request.arrived_at_ns,
        staged_at_ns=turn.trace.staged_at_ns,
        num_staged=turn.trace.num_staged,
        first_step_at_ns=turn.trace.first_step_at_ns,
        first_token_at_ns=turn.trace.first_token_at_ns,
        cached_in=turn.cache.cached_in(turn.num_prompt),
        waits=tuple(turn.trace.waits),
    )


def error(turn: Turn, code: str, message: str) -> Emit:
    """Why a turn has no more tokens."""
    return Emit(
        turn.request.frontend_id,
        TurnDelta(
            turn_id=turn.request.turn_id,
            attempt=turn.request.attempt,
            index=turn.num_generated,
            finish="error",
            code=code,
            message=message,
        ),
    )


def refuse(turn: Turn, code: str, message: str) -> list[Effect]:
    """Answer a turn that cannot be taken."""
    return [error(turn, code, message), ended(turn, "error")]


def cancelled_start(start: TurnStart) -> Ended:
    """The end of a start that is not wanted any more, of which no turn was made."""
    return Ended(TurnEnd(turn_id=start.turn_id, attempt=start.attempt, reason="cancelled"))


def refuse_start(start: TurnStart, why: SymphonyError) -> list[Effect]:
    """Answer a start of which no turn can be made."""
    delta = TurnDelta(
        turn_id=start.turn_id, attempt=start.attempt, index=0, finish="error", code=why.code,
        message=why.message,
    )  # fmt: skip
    end = TurnEnd(turn_id=start.turn_id, attempt=start.attempt, reason="error")
    return [Emit(start.frontend_id, delta), Ended(end)]
