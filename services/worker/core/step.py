"""One step as data: all that an executor gets, and all that it returns.

A plan holds no turn and no block, so it can be run by any executor, written to a file and run
again. Rows are in one order everywhere, decodes first, then chunks of prompts; R rows have T new
tokens together. Pages are passed once: they stay in the executor's block tables, one line a running
turn, until another entry takes their place.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shared.ids import TurnId
from shared.wire.messages import SamplingParams, TokenLogprobs
from shared.wire.sampling import depends_on_reply

Ints = npt.NDArray[np.int32]
STALL_UNKNOWN_NS = 1_000_000_000  # of a plan that does not say


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


@dataclass(slots=True)  # frozen, it would take three times as long: each row of each step has one
class RowSampling:
    """How the token behind a row's last one is chosen. Not to be changed.

    Attributes:
        num_generated: tokens that the turn has generated so far, a carried one with them; with the
            seed, they decide the draw.
        prompt, generated: the turn's tokens, where its penalties or its grammar ask for them; a
            carried one is not among them.
    """

    params: SamplingParams
    num_generated: int
    prompt: list[int] | Ints = field(default_factory=list)
    generated: list[int] = field(default_factory=list)

    def after(self, token: int) -> "RowSampling":
        """The same where the carried token is known: penalties count it, grammars go on behind
        it.
        """
        if not depends_on_reply(self.params):
            return self
        return replace(self, generated=[*self.generated, int(token)])


@dataclass(frozen=True, slots=True)
class RowScoring:
    """Log-probabilities of prompt tokens that a row is to give.

    Attributes:
        num_top: likeliest tokens to return with each.
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


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """A line of the adapter tables, to be entered before the step.

    Attributes:
        ranks: of each target that the adapter has, by name; with the model's card, they tell where
            in the pages what lies.
        pages: int32 [blocks, num_layers]: pool page of each block of its image in each layer.
    """

    line: int
    adapter_hash: str
    ranks: dict[str, int]
    pages: Ints


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where in the host's arena an adapter's image is, which stays pinned while a step may read it.

    Attributes:
        pages: by layer and block.
        generations: what each page's word must hold.
        epoch: connection to a kvstore that the pages belong to.
    """

    pages: list[list[int]]
    generations: list[list[int]]
    epoch: int


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
        long: int32 [n]: rows whose sequence, all of its prompt counted, is longer than the model's
            `short_rope_max`.
        sampling: for each row, None where nothing is sampled yet.
        scoring: by row.
        awaited: by row, for each layer, pool pages of its history that are loading.
        patience_ns: how much later than planned those of a row may be, by row; later it fails.
        starts_in_ns, pass_ns: when the pass begins, from when it was planned, and how long it takes
            if it waits for nothing, as far as is known: it goes through its layers evenly. A host
            may be ahead of its device.
        entries: of the block tables.
        adapters: int32 [R]: each row's line in the adapter tables; negative: the base model's. Rows
            of one adapter follow each other, among the decodes and among the prompts.
        images: entries of the adapter tables.
        streams: by line of those, for each layer, pool pages of the adapter that are
            loading.
        assists: those of these lines whose layers that are not here can be computed from the arena.
    """

    turn_ids: list[TurnId]
    slots: Ints
    tokens: Ints
    following: Ints
    carried: Ints
    query_starts: Ints
    context_lens: Ints
    long: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    sampling: list[RowSampling | None]
    scoring: dict[int, RowScoring]
    awaited: dict[int, list[list[int]]]
    entries: TableEntries
    adapters: Ints
    images: list[ImageEntry] = field(default_factory=list)
    streams: dict[int, list[list[int]]] = field(default_factory=dict)
    assists: dict[int, ImageSource] = field(default_factory=dict)
    patience_ns: dict[int, int] = field(default_factory=dict)
    starts_in_ns: int = 0
    pass_ns: int = 0

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

    def due_in_ns(self, row: int, layer: int, num_layers: int) -> int:
        """How long a host may wait for a layer of a row's history, from when it begins a pass."""
        reaches_ns = self.starts_in_ns + self.pass_ns * layer // num_layers
        return reaches_ns + self.patience_ns.get(row, STALL_UNKNOWN_NS)

    @property
    def num_decodes(self) -> int:
        """Rows of one token; all others are chunks of prompts."""
        lengths: list[int] = self.lengths.tolist()
        return lengths.count(1)  # numpy is slower on few

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

    def sampled_rows(self, tokens: Ints) -> list[tuple[int, RowSampling]]:
        """Rows that choose a token, with the carried tokens filled in.

        Args:
            tokens: as `tokens`, with the carried ones filled in.
        """
        lasts: list[int] = (self.query_starts[1:] - 1).tolist()
        carried = frozenset(self.carried.tolist())
        return [
            (row, sampling.after(int(tokens[lasts[row]])) if row in carried else sampling)
            for row, sampling in enumerate(self.sampling)
            if sampling is not None
        ]

    def are_long(self) -> npt.NDArray[np.bool_]:
        """bool [T]: of each new token, whether its row is in `long`."""
        return np.repeat(np.isin(np.arange(self.num_rows), self.long), self.lengths)

    def positions(self) -> Ints:
        """int32 [T]: of each new token in its turn."""
        shifts = self.context_lens - self.query_starts[1:]
        return np.arange(self.num_tokens, dtype=np.int32) + np.repeat(shifts, self.lengths)

    def alone(self, row: int) -> "StepPlan":
        """The part of it that is of one row."""
        first, last = self.query_starts[row : row + 2].tolist()
        line = int(self.adapters[row])
        return StepPlan(
            turn_ids=self.turn_ids[row : row + 1],
            slots=self.slots[row : row + 1],
            tokens=self.tokens[first:last],
            following=np.zeros(int(row in self.following), np.int32),
            carried=np.zeros(int(row in self.carried), np.int32),
            query_starts=np.array([0, last - first], np.int32),
            context_lens=self.context_lens[row : row + 1],
            long=np.zeros(int(row in self.long), np.int32),
            sampling=self.sampling[row : row + 1],
            scoring={0: self.scoring[row]} if row in self.scoring else {},
            awaited={0: self.awaited[row]} if row in self.awaited else {},
            patience_ns={0: self.patience_ns[row]} if row in self.patience_ns else {},
            starts_in_ns=self.starts_in_ns,
            pass_ns=self.pass_ns,
            entries=self.entries,
            adapters=self.adapters[row : row + 1],
            images=self.images,
            streams={line: self.streams[line]} if line in self.streams else {},
            assists={line: self.assists[line]} if line in self.assists else {},
        )


@dataclass(slots=True)  # as `RowSampling`
class Sampled:
    """A chosen token and, if asked for, log-probabilities. Not to be changed."""

    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class StepResult:
    """What a step gave, by row.

    Attributes:
        sampled: for each row, its token; None where none was asked for or the row failed.
        failed: rows whose history or adapter did not arrive; their results are void.
        broken: rows that cannot be computed, and why; their results are void.
        refused: rows that no token can be chosen for within their grammar, and why.
        prompt_logprobs: for rows that asked, of this chunk's positions.
        stall_ns: waiting for history and adapters, for each layer.
        stall_at_ns: by layer, when it began to wait, by the monotonic clock.
        assist_ns: waiting for what helpers computed.
        started_at_ns: by the monotonic clock; 0 where it was not measured.
        duration_ns: of the whole step.
        unrecorded: why its pass was launched kernel by kernel; empty: it was not, or the device
            records none.
    """

    sampled: list[Sampled | None]
    failed: set[int] = field(default_factory=set)
    broken: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    stall_ns: list[int] = field(default_factory=list)
    stall_at_ns: dict[int, int] = field(default_factory=dict)
    assist_ns: int = 0
    started_at_ns: int = 0
    duration_ns: int = 0
    unrecorded: str = ""
