"""What a worker says, cut to what one message may hold: a prompt's log-probabilities can be
megabytes, and so can the checksums of a step's blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shared.groups import in_groups
from shared.wire.messages import NextToken, StepOutput, TokenLogprobs, TurnDelta

# Of a message's payload, leaving room: these are estimates, not sizes.
SHARE = 0.5
# Whatever it may hold: a frontend reads 256 KiB in 20 ms, and no other turn's tokens meanwhile.
STEP_BYTES_MAX = 256 * 1024
DELTA_BYTES = 400
TOKEN_BYTES = 12
NEXT_TOKEN_BYTES = 128
ENTRY_BYTES = 60
PAIR_BYTES = 40
BLOCK_BYTES = 700  # of a new block, besides what it says of each layer
LAYER_BYTES = 17
TURN_REF_BYTES = 128


@dataclass(slots=True)
class Unsent:
    """What one frontend is to be sent, in order.

    A message's tokens are read behind its deltas, so a delta does not join those of a later step.
    """

    _outputs: list[StepOutput] = field(default_factory=list)

    def add_delta(self, delta: TurnDelta) -> None:
        """A turn has more to say than its next token."""
        if not self._outputs or self._outputs[-1].tokens:
            self._outputs.append(StepOutput())
        self._outputs[-1].deltas.append(delta)

    def add_tokens(self, tokens: list[NextToken]) -> None:
        """The next tokens of other turns, of the same step."""
        if not self._outputs:
            self._outputs.append(StepOutput())
        self._outputs[-1].tokens.extend(tokens)

    def all(self) -> Iterator[TurnDelta]:
        """All of it, as deltas."""
        for output in self._outputs:
            yield from output.all()

    def messages(self, payload_bytes_max: int) -> list[StepOutput]:
        """All of it, in messages that fit, none so large that it holds up who reads it."""
        return [part for each in self._outputs for part in split_output(each, payload_bytes_max)]


def split_output(output: StepOutput, payload_bytes_max: int) -> list[StepOutput]:
    """The same in as few messages as fit, none so large that it holds up who reads it.

    A delta that is too large for one is cut: parts of its prompt's log-probabilities go ahead in
    deltas without tokens, and the delta itself ends them.
    """
    room = min(int(payload_bytes_max * SHARE), STEP_BYTES_MAX)
    rows_max = room // NEXT_TOKEN_BYTES
    if not output.deltas and len(output.tokens) <= rows_max:
        return [output]
    parts: list[TurnDelta | list[NextToken]] = []
    for delta in output.deltas:
        parts += _parts(delta, room)
    parts += [output.tokens[at : at + rows_max] for at in range(0, len(output.tokens), rows_max)]
    outputs: list[StepOutput] = []
    for group in in_groups(parts, _bytes_of, room):
        outputs.append(StepOutput())
        for part in group:
            if isinstance(part, TurnDelta):
                outputs[-1].deltas.append(part)
            else:
                outputs[-1].tokens.extend(part)
    return outputs


def commit_blocks_max(num_layers: int, payload_bytes_max: int) -> int:
    """New blocks that fit a message to the kvstore; at least one.

    >>> commit_blocks_max(num_layers=30, payload_bytes_max=1024**2)
    433
    """
    return max(int(payload_bytes_max * SHARE) // (BLOCK_BYTES + LAYER_BYTES * num_layers), 1)


def turns_held_max(payload_bytes_max: int) -> int:
    """Turns that a worker may hold: a report names all of them, or those that it left out would be
    taken for lost.

    >>> turns_held_max(1024**2)
    4096
    """
    return max(int(payload_bytes_max * SHARE) // TURN_REF_BYTES, 1)


def _parts(delta: TurnDelta, room: int) -> list[TurnDelta]:
    if delta.prompt_logprobs is None or _bytes_of(delta) <= room:
        return [delta]
    parts: list[TurnDelta] = []
    some: list[TokenLogprobs] = []
    left = room - DELTA_BYTES
    for entry in delta.prompt_logprobs:
        num_bytes = _bytes_of_entry(entry)
        if some and num_bytes > left:
            parts.append(_ahead(delta, some))
            some, left = [], room - DELTA_BYTES
        some.append(entry)
        left -= num_bytes
    return [*parts, _ahead(delta, some), replace(delta, prompt_logprobs=None)]


def _ahead(delta: TurnDelta, some: list[TokenLogprobs]) -> TurnDelta:
    return TurnDelta(
        turn_id=delta.turn_id, attempt=delta.attempt, index=delta.index, prompt_logprobs=some
    )


def _bytes_of(part: TurnDelta | list[NextToken]) -> int:
    if not isinstance(part, TurnDelta):
        return NEXT_TOKEN_BYTES * len(part)
    num_bytes = DELTA_BYTES + TOKEN_BYTES * len(part.tokens) + len(part.message)
    for entries in (part.logprobs, part.prompt_logprobs):
        if entries is not None:
            num_bytes += sum(map(_bytes_of_entry, entries))
    return num_bytes


def _bytes_of_entry(entry: TokenLogprobs) -> int:
    return ENTRY_BYTES + PAIR_BYTES * len(entry.top)
