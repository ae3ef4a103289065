"""One step as data: all that an executor is told, and all that it answers.

A plan holds no turn and no block, so it can be run by any executor, written to a file and run
again. Rows are in one order everywhere, decodes first, then chunks of prompts; R rows have T new
tokens together. Pages are told once: they stay in the executor's block tables, one line a running
turn, until another entry takes their place.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.ids import TurnId
from shared.messages import SamplingParams, TokenLogprobs
from shared.sampling import has_penalties

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TableEntries:
    """New entries of the block tables, to be made before the step.

    Attributes:
        slots, blocks: int32 [n]: line of a turn, and number of a block in it.
        pages: int32 [n, num_layers]: that block's pool page in each layer.
    """

    slots: Ints
    blocks: Ints
    pages: Ints


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How the token behind a row's last one is chosen.

    Attributes:
        num_generated: tokens that the turn has generated so far, a carried one with them; with the
            seed, they decide the draw.
        prompt, generated: the turn's tokens, where its penalties ask for them; a carried one is
            not among them.
    """

    params: SamplingParams
    num_generated: int
    prompt: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)

    def after(self, token: int) -> "RowSampling":
        """The same where the carried token is known: penalties count it."""
        if not has_penalties(self.params):
            return self
        return replace(self, generated=[*self.generated, int(token)])


@dataclass(frozen=True, slots=True)
class RowScoring:
    """Log-probabilities of prompt tokens that a row is to give.

    Attributes:
        num_top: likeliest tokens to tell with each.
        targets: tokens that the row's positions are to be followed by; fewer than its positions
            where the prompt ends with it.
        is_first: the row begins with the prompt's first token, which nothing predicts.
    """

    num_top: int
    targets: list[int]
    is_first: bool


class PlannedRow(NamedTuple):
    """One turn's part of a step: compute ``tokens[start:end]``, then perhaps sample."""

    turn_id: TurnId
    start: int
    end: int
    is_sampled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """The whole decision of one step.

    Attributes:
        turn_ids: of each row.
        slots: int32 [R]: each row's line in the block tables.
        tokens: int32 [T]: new tokens of all rows.
        following: int32 [n]: rows that go on behind a row of the step before this one, which was in
            flight when they were planned; where that one failed they are void.
        carried: int32 [n]: those of them whose last token that step has still to choose: it is the
            latest that was chosen for their slot, whatever `tokens` has in its place.
        query_starts: int32 [R + 1]: where each row's new tokens begin; ends with T.
        context_lens: int32 [R]: tokens of each row's turn up to and with its new ones.
        sampling: for each row, None where nothing is sampled yet.
        scoring: by row.
        awaited: by row, for each layer, pool pages of its history that bytes are on their way into.
        entries: of the block tables.
    """

    turn_ids: list[TurnId]
    slots: Ints
    tokens: Ints
    following: Ints
    carried: Ints
    query_starts: Ints
    context_lens: Ints
    sampling: list[RowSampling | None]
    scoring: dict[int, RowScoring]
    awaited: dict[int, list[list[int]]]
    entries: TableEntries

    @property
    def num_rows(self) -> int:
        return len(self.turn_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> Ints:
        """int32 [R]: new tokens of each row."""
        return self.query_starts[1:] - self.query_starts[:-1]  # np.diff is slow on few

    @property
    def num_decodes(self) -> int:
        """Rows of one token; all others are chunks of prompts."""
        return int(np.count_nonzero(self.lengths == 1))

    @property
    def num_prefill_tokens(self) -> int:
        return self.num_tokens - self.num_decodes

    def rows(self) -> list[PlannedRow]:
        """The rows, one by one."""
        lengths: list[int] = self.lengths.tolist()
        ends: list[int] = self.context_lens.tolist()
        return [
            PlannedRow(turn_id, end - length, end, sampling is not None)
            for turn_id, length, end, sampling in zip(
                self.turn_ids, lengths, ends, self.sampling, strict=True
            )
        ]

    def positions(self) -> Ints:
        """int32 [T]: of each new token in its turn."""
        shifts = self.context_lens - self.query_starts[1:]
        return np.arange(self.num_tokens, dtype=np.int32) + np.repeat(shifts, self.lengths)

    def alone(self, row: int) -> "StepPlan":
        """The part of it that is of one row."""
        first, last = self.query_starts[row : row + 2].tolist()
        return StepPlan(
            turn_ids=self.turn_ids[row : row + 1],
            slots=self.slots[row : row + 1],
            tokens=self.tokens[first:last],
            following=np.zeros(int(row in self.following), np.int32),
            carried=np.zeros(int(row in self.carried), np.int32),
            query_starts=np.array([0, last - first], np.int32),
            context_lens=self.context_lens[row : row + 1],
            sampling=self.sampling[row : row + 1],
            scoring={0: self.scoring[row]} if row in self.scoring else {},
            awaited={0: self.awaited[row]} if row in self.awaited else {},
            entries=self.entries,
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token and, if asked for, log-probabilities."""

    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class StepResult:
    """What a step gave, by row.

    Attributes:
        sampled: for each row, its token; None where none was asked for or the row failed.
        failed: rows whose history did not arrive; their results are void.
        broken: rows that cannot be computed, and why; their results are void.
        prompt_logprobs: for rows that asked, of this chunk's positions.
        stall_ns: waiting for history, for each layer.
        started_at_ns: by the monotonic clock; 0 where nobody measured it.
        duration_ns: of the whole step.
    """

    sampled: list[Sampled | None]
    failed: set[int] = field(default_factory=set)
    broken: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    stall_ns: list[int] = field(default_factory=list)
    started_at_ns: int = 0
    duration_ns: int = 0
