"""What a finished step means for its turns: tokens, ends, blocks that others may now use."""

from typing import TYPE_CHECKING

from services.worker.core.admission import on_first_token
from services.worker.core.effects import (
    LATE,
    BlockWrite,
    CommitBlocks,
    Effect,
    Emit,
    Ended,
    ReportSoon,
    ReturnPages,
    Sampled,
    StepPlan,
    StepResult,
    TurnAccount,
)
from services.worker.core.history import release_holds
from services.worker.core.pages import NO_PAGE, CachedBlock
from services.worker.core.turn import Turn
from shared.blocks import BlockKey
from shared.errors import SymphonyError
from shared.messages import FinishReason, TurnDelta, TurnEnd, TurnStart

if TYPE_CHECKING:
    from services.worker.core.engine import EngineCore


def settle_writes(
    core: "EngineCore", plan: StepPlan, result: StepResult
) -> tuple[dict[BlockKey, BlockWrite], list[Effect]]:
    """The writes whose bytes are right, by key, and what to tell the kvstore of all of them.

    Writes into pages whose lease ended during the step (the kvstore was lost), and of blocks that
    were forgotten during it, count for nothing.
    """
    good: dict[BlockKey, BlockWrite] = {}
    checksums: list[list[int]] = []
    unused: list[int] = []
    held = [core.writeback.take_back(write.arena_pages) for write in plan.writes]
    for write, sums, is_held in zip(plan.writes, result.checksums, held, strict=False):
        if not is_held:
            continue
        if write.row == LATE:
            is_void = not core.writeback.is_committing(write.key)
        else:
            is_void = write.row in result.failed or write.row in result.broken
            is_void = is_void or plan.rows[write.row].turn.is_private
        if is_void or not sums:
            unused += write.arena_pages
        else:
            good[write.key] = write
            checksums.append(sums)
    effects: list[Effect] = []
    if good:
        effects.append(CommitBlocks(list(good.values()), checksums))
    if unused:
        effects.append(ReturnPages(unused))
    return good, effects


def register_blocks(core: "EngineCore", turn: Turn, written: dict[BlockKey, BlockWrite]) -> None:
    """Full blocks just computed enter the cache, so that others may run on them."""
    if turn.is_private:
        return
    while len(turn.blocks) < turn.num_computed // turn.block_tokens:
        index = len(turn.blocks)
        key = turn.key(index)
        pages: list[int] = turn.table[:, index].tolist()
        twin = core.pool.blocks.get(key)
        if twin is not None and NO_PAGE in twin.pages and not twin.refs and not twin.loading:
            core.pool.drop(twin)  # a remnant: the whole block takes its place
            twin = None
        if twin is None:
            block = CachedBlock(key, pages, refs=1, owner=turn.owner)
            core.pool.add(block)
            turn.blocks.append(block)
            if key in written:
                core.writeback.on_committing(block)
            else:
                core.writeback.on_computed(block, turn.parent_key(index), turn.block(index))
        elif twin.lost or twin.loading or NO_PAGE in twin.pages:
            return  # the key is taken by a block that cannot stand in: these pages stay private
        else:
            core.pool.acquire(twin)
            turn.set_pages(index, twin.pages)
            turn.blocks.append(twin)
            core.pool.give_back(pages)


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
    for block in turn.blocks:
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
    if turn in core.running:
        core.running.remove(turn)
    else:
        core.waiting.remove(turn)
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
    if not plan.rows:
        return
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
