"""Prompts, and the steps that compute them in every way that an engine computes prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from services.worker.core.step import Ints, RowScoring, StepPlan, TableEntries
from shared.blocks import BLOCK_TOKENS
from shared.ids import TurnId

LONG, MIDDLE, SHORT, OTHER = 192, 70, 8, 130
SHARED = 2 * BLOCK_TOKENS
BLOCKS = 3  # of each slot


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens ``[start, end)`` of a prompt, computed in one step, in a slot of the block tables.

    Attributes:
        is_scored: their log-probabilities are asked for.
    """

    prompt: str
    slot: int
    start: int
    end: int
    is_scored: bool = True


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute prompts.

    Attributes:
        name: for people; it completes "... differs".
        steps: parts of one step each, rows of one token first.
        shared: (slot, slot of the prompt whose first blocks it takes over).
    """

    name: str
    steps: list[list[Part]]
    shared: tuple[int, int] | None = None


def lengths(longest: int) -> dict[str, int]:
    """Of each prompt, tokens that are computed, for a model that takes so many."""
    wanted = {"long": LONG, "middle": MIDDLE, "short": SHORT, "other": OTHER, "resumed": LONG}
    return {name: max(min(length, longest), 4) for name, length in wanted.items()}


def ways(of: dict[str, int]) -> list[Way]:
    """From the simplest on; each takes for granted that those before it give what they should.

    Args:
        of: `lengths`.
    """
    long, other, middle, short = of["long"], of["other"], of["middle"], of["short"]
    found = [
        Way("a whole prompt", [[Part("long", 0, 0, long - 3)]]),
        Way("decoding", [[Part("long", 0, at, at + 1)] for at in range(long - 3, long)]),
        Way("a prompt in chunks", _chunks("other", 1, [0, other * 2 // 5, other * 3 // 4, other])),
    ]
    if long > SHARED:
        found.append(
            Way("a resumed prompt", [[Part("resumed", 2, SHARED, of["resumed"])]], shared=(2, 0))
        )
    first = max(long // 7, 1)
    early = [
        Part("middle", 4, 0, middle // 2, is_scored=False),  # logits are those of some rows
        Part("short", 5, 0, short - 2),
        Part("other", 6, 0, other // 2),
        Part("long", 3, 0, first),
    ]
    late = [
        Part("short", 5, short - 2, short - 1),
        Part("long", 3, first, long - 1),
        Part("other", 6, other // 2, other),
        Part("middle", 4, middle // 2, middle),
    ]
    last = [Part("short", 5, short - 1, short), Part("long", 3, long - 1, long)]
    return [*found, Way("a step of several requests", [early, late, last])]


def plans(
    way: Way, prompts: dict[str, list[int]], num_layers: int, short_rope_max: int
) -> Iterator[StepPlan]:
    """The way's steps as an executor takes them. Each slot has pages of its own."""
    slots = sorted({part.slot for step in way.steps for part in step})
    entries = _entries(slots, way.shared, num_layers)
    for step in way.steps:
        long = [
            row
            for row, part in enumerate(step)
            if 0 < short_rope_max < len(prompts[part.prompt]) - 1  # the last is not computed
        ]
        yield replace(_plan(step, prompts, entries), long=np.array(long, np.int32))
        entries = _entries([], None, num_layers)


def num_pages(num_layers: int) -> int:
    """That all slots need together."""
    return 8 * BLOCKS * num_layers


def _chunks(prompt: str, slot: int, borders: Sequence[int]) -> list[list[Part]]:
    return [[Part(prompt, slot, start, end)] for start, end in pairwise(borders) if end > start]


def _entries(slots: list[int], shared: tuple[int, int] | None, num_layers: int) -> TableEntries:
    lines = [(slot, block, slot, block) for slot in slots for block in range(BLOCKS)]
    if shared is not None:
        slot, source = shared
        lines = [
            (at, block, source if at == slot and block < SHARED // BLOCK_TOKENS else own, of)
            for at, block, own, of in lines
        ]
    pages = [
        [(source * BLOCKS + of) * num_layers + layer for layer in range(num_layers)]
        for _, _, source, of in lines
    ]
    return TableEntries(
        np.array([line[0] for line in lines], np.int32),
        np.array([line[1] for line in lines], np.int32),
        np.array(pages, np.int32).reshape(len(lines), num_layers),
    )


def _plan(step: list[Part], prompts: dict[str, list[int]], entries: TableEntries) -> StepPlan:
    nothing: Ints = np.zeros(0, np.int32)
    tokens = [token for part in step for token in prompts[part.prompt][part.start : part.end]]
    starts = np.cumsum([0, *(part.end - part.start for part in step)])
    return StepPlan(
        turn_ids=[TurnId(str(part.slot)) for part in step],
        slots=np.array([part.slot for part in step], np.int32),
        tokens=np.array(tokens, np.int32),
        following=nothing,
        carried=nothing,
        query_starts=starts.astype(np.int32),
        context_lens=np.array([part.end for part in step], np.int32),
        sampling=[None] * len(step),
        scoring={
            row: RowScoring(0, prompts[part.prompt][part.start + 1 : part.end + 1], False)
            for row, part in enumerate(step)
            if part.is_scored
        },
        awaited={},
        entries=entries,
        adapters=np.full(len(step), -1, np.int32),
    )
