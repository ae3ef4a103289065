"""The cost of a turn on a worker, in ms: until its first token, while it decodes, and the delay of
the turns that run beside it.

A turn waits for the prompts before it and perhaps for a place in the batch, for the transfer or
recomputation of its KV, and for its own prompt. Then it decodes, a little more slowly for each turn
beside it. Those turns wait for its prompt, too, and decode a little more slowly. The sum is what
the placement adds to the total waiting time: on equal workers turns are spread evenly, which is
the paper's default (SYMPHONY, section 3.3), and on unequal workers they are not.
"""

from dataclasses import dataclass
from typing import NamedTuple

from services.scheduler.core.fleet.kinds import Steps
from services.scheduler.core.fleet.lengths import GUESSED_TOKENS

BROKEN_MS = 10_000.0  # for a target that would be missed, the turn's own or another's
HIDDEN_SHARE = 0.05  # of a transfer that costs even if hidden, since links are shared


@dataclass(slots=True, kw_only=True)
class TurnWork:
    """What one turn on one worker involves.

    Attributes:
        num_rows: turns that will decode beside it.
        num_tokens: of its reply.
        num_tokens_beside: that those turns still have to make, each in the mean.
        lora_ms: what adapters add to a step without it, and with it.
        num_seats: most turns in one step; 0: unknown.
        num_waiting_tokens: prompt tokens that are computed before its own.
        num_new_tokens: of its prompt, without its history.
        num_history_tokens: tokens whose KV exists on some tier.
        fetch_ms: transfer time of that KV to the device; 0: it is there.
        ahead_ms: time until the turn arrives, which hides transfers.
        adapter_ms: load time of its adapter.
    """

    num_rows: float = 0.0
    num_tokens: float = GUESSED_TOKENS
    num_tokens_beside: float = GUESSED_TOKENS
    lora_ms: tuple[float, float] = (0.0, 0.0)
    num_seats: int = 0
    num_waiting_tokens: float = 0.0
    num_new_tokens: float = 0.0
    num_history_tokens: float = 0.0
    fetch_ms: float = 0.0
    ahead_ms: float = 0.0
    adapter_ms: float = 0.0


class Cost(NamedTuple):
    """Attributes:
    queue_ms: wait until its prompt is computed.
    kv_ms: for its history and its adapter.
    prompt_ms: for the new part of its prompt.
    decode_ms: for all further tokens.
    others_ms: total additional delay of the turns beside it.
    steps_ms: of a step without it, and with it.
    broken_ms: for targets that would be missed.
    """

    queue_ms: float
    kv_ms: float
    prompt_ms: float
    decode_ms: float
    others_ms: float
    steps_ms: tuple[float, float]
    broken_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        """The sum."""
        return self.ttft_ms + self.decode_ms + self.others_ms + self.broken_ms

    @property
    def ttft_ms(self) -> float:
        """Until its first token."""
        return self.queue_ms + self.kv_ms + self.prompt_ms


def cost_of(steps: Steps, work: TurnWork) -> Cost:
    """The cost of this work on a worker with these step times.

    >>> from services.scheduler.core.fleet.kinds import GUESSED
    >>> idle = cost_of(GUESSED, TurnWork(num_new_tokens=100))
    >>> busy = cost_of(GUESSED, TurnWork(num_new_tokens=100, num_rows=4))
    >>> idle.others_ms, round(busy.total_ms - idle.total_ms)
    (0.0, 130)
    """
    token_ms, row_ms, num_rows = steps.token_ms, steps.row_ms, work.num_rows
    step_ms = steps.step_ms + row_ms * num_rows + work.lora_ms[0]
    longer_ms = row_ms + work.lora_ms[1] - work.lora_ms[0]
    queue_ms = max(work.num_waiting_tokens * token_ms - work.ahead_ms, 0.0)
    if num_rows:
        queue_ms += step_ms  # the step that runs now
    if work.num_seats and num_rows >= work.num_seats:
        num_before = num_rows - work.num_seats + 1
        full_ms = steps.step_ms + row_ms * work.num_seats + work.lora_ms[1]
        queue_ms += num_before / work.num_seats * work.num_tokens_beside * full_ms
    kv_ms, num_computed = work.fetch_ms, work.num_new_tokens
    if work.fetch_ms:
        kv_ms = HIDDEN_SHARE * work.fetch_ms + max(work.fetch_ms - work.ahead_ms, 0.0)
        recompute_ms = work.num_history_tokens * token_ms
        if recompute_ms * (1 + num_rows) < kv_ms:  # turns beside it wait for that, too
            kv_ms, num_computed = recompute_ms, num_computed + work.num_history_tokens
    kv_ms += max(work.adapter_ms - work.ahead_ms, 0.0)
    prompt_ms = work.num_new_tokens * token_ms
    decode_ms = work.num_tokens * (step_ms + longer_ms)
    others_ms = num_rows * (num_computed * token_ms + work.num_tokens_beside * longer_ms)
    with_it_ms = step_ms, step_ms + longer_ms
    return Cost(queue_ms, kv_ms, prompt_ms, decode_ms, others_ms, with_it_ms)
