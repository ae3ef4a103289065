"""From the turns that a step runs to the step as data."""

from dataclasses import dataclass

import numpy as np

from services.worker.core.adapters.image import NO_LINE
from services.worker.core.kv.pages import PagePool
from services.worker.core.kv.staged import Staged
from services.worker.core.step import (
    ImageEntry,
    ImageSource,
    Ints,
    RowSampling,
    RowScoring,
    StepPlan,
    TableEntries,
)
from services.worker.core.turns.turn import Turn

NOT_KNOWN = 0  # stands for a carried token
NO_TOKENS: list[int] = []  # of rows whose choice does not look at them
NO_INTS: Ints = np.empty(0, np.int32)


@dataclass(slots=True)  # neither frozen nor a tuple: each turn of each step has one
class Row:
    """One turn's part: compute ``tokens[start:end]``, once `awaited` (see `StepPlan`) is there.

    `end` may be behind the tokens that are known by one: that token is chosen by a step in flight.

    Attributes:
        stall_ns: how long the pass will probably wait for what is awaited.
    """

    turn: Turn
    start: int
    end: int
    awaited: list[list[int]]
    stall_ns: int = 0


def step_plan(
    rows: list[Row], pool: PagePool, streams: dict[int, list[list[int]]], sources: dict[int, Staged]
) -> StepPlan:
    """The plan of these rows. It has only block table entries that no earlier plan had."""
    tokens: list[int] = []
    starts, ends, slots = [0], [], []
    carried, following, long = [], [], []
    sampling: list[RowSampling | None] = []
    scoring: dict[int, RowScoring] = {}
    awaited: dict[int, list[list[int]]] = {}
    on_adapters = []
    for number, row in enumerate(rows):
        turn, end = row.turn, row.end
        if end > len(turn.tokens):
            tokens += [*turn.tokens[row.start :], NOT_KNOWN]
            carried.append(number)
        else:
            tokens += turn.tokens[row.start : end]
        if turn.num_flights:
            following.append(number)
        if turn.cache.is_long:
            long.append(number)
        if turn.adapter.image is not None:
            on_adapters.append(turn)
        if row.awaited:
            awaited[number] = row.awaited
        if turn.request.sampling.prompt_logprobs is not None and (scores := _scoring(row)):
            scoring[number] = scores
        sampling.append(_sampling(turn, end))
        slots.append(turn.slot)
        starts.append(len(tokens))
        ends.append(end)
    turns = [row.turn for row in rows]
    return StepPlan(
        turn_ids=[turn.request.turn_id for turn in turns],
        slots=np.array(slots, np.int32),
        tokens=np.array(tokens, np.int32),
        following=np.array(following, np.int32),
        carried=np.array(carried, np.int32),
        query_starts=np.array(starts, np.int32),
        context_lens=np.array(ends, np.int32),
        long=np.array(long, np.int32),
        sampling=sampling,
        scoring=scoring,
        awaited=awaited,
        entries=_entries(turns, pool),
        adapters=_lines(turns) if on_adapters else np.full(len(turns), NO_LINE, np.int32),
        images=_images(on_adapters, pool),
        streams=streams,
        assists={
            line: ImageSource(source.pages, source.generations, source.epoch)
            for line, source in sources.items()
            if line in streams
        },
    )


def by_adapter(rows: list[Row]) -> list[Row]:
    """The rows so that those of one adapter follow each other, decodes before prompts: where both
    have rows of an adapter, those meet in the middle (Punica, section 6)."""
    if all(row.turn.adapter.image is None for row in rows):
        return rows
    decodes = [row for row in rows if row.turn.is_decoding]
    prompts = [row for row in rows if not row.turn.is_decoding]
    lines = {_line(row.turn) for row in prompts}
    shared = max((line for row in decodes if (line := _line(row.turn)) in lines), default=NO_LINE)
    decodes.sort(key=lambda row: (_line(row.turn) == shared, _line(row.turn)))
    prompts.sort(key=lambda row: (_line(row.turn) != shared, _line(row.turn)))
    return decodes + prompts


def _lines(turns: list[Turn]) -> Ints:
    return np.array([_line(turn) for turn in turns], np.int32)


def _line(turn: Turn) -> int:
    return NO_LINE if turn.adapter.image is None else turn.adapter.image.line


def _images(turns: list[Turn], pool: PagePool) -> list[ImageEntry]:
    """What the executor's adapter tables lack of these turns."""
    entries: list[ImageEntry] = []
    for turn in turns:
        image = turn.adapter.image
        if image is not None and not image.is_reported:
            image.is_reported = True
            pages: Ints = pool.table[[block.row for block in image.chain.blocks]]
            adapter = image.adapter
            entries.append(ImageEntry(image.line, adapter.adapter_hash, adapter.ranks, pages))
    return entries


def _sampling(turn: Turn, end: int) -> RowSampling | None:
    if end < len(turn.tokens) + turn.num_sampling:
        return None
    params, num_generated = turn.request.sampling, end - turn.num_prompt
    if not turn.request.depends_on_reply:
        return RowSampling(params, num_generated, NO_TOKENS, NO_TOKENS)
    prompt: list[int] | Ints = NO_TOKENS
    if params.repetition_penalty != 1.0:
        if turn.prompt is None:
            turn.prompt = np.array(turn.tokens[: turn.num_prompt], np.int32)
        prompt = turn.prompt
    return RowSampling(params, num_generated, prompt, turn.tokens[turn.num_prompt :])


def _scoring(row: Row) -> RowScoring | None:
    turn = row.turn
    num_top = turn.request.sampling.prompt_logprobs
    if num_top is None or row.start >= turn.num_prompt:
        return None
    targets = turn.tokens[row.start + 1 : min(row.end + 1, turn.num_prompt)]
    return RowScoring(num_top, targets, row.start == 0)


def _entries(turns: list[Turn], pool: PagePool) -> TableEntries:
    """What the executor's block tables lack of these turns."""
    slots: list[int] = []
    blocks: list[int] = []
    rows: list[int] = []
    for turn in turns:
        if turn.cache.unreported_blocks:
            slots += [turn.slot] * len(turn.cache.unreported_blocks)
            blocks += turn.cache.unreported_blocks
            rows += [turn.cache.held(number).row for number in turn.cache.unreported_blocks]
            turn.cache.unreported_blocks = []
    if not rows:
        return TableEntries(NO_INTS, NO_INTS, pool.table[:0])
    return TableEntries(np.array(slots, np.int32), np.array(blocks, np.int32), pool.table[rows])
