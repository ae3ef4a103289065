"""What it costs to have a turn on a worker, in ms: until its first token, while it decodes, and
what all that takes from the turns it runs beside.

A turn waits for the prompts before it and perhaps for a seat in the batch, for its KV or for
computing that again, and for computing its prompt. Then it decodes, a little more slowly for each
turn beside it. Those turns wait for its prompt, too, and decode a little more slowly for it. The
sum is what placing the turn here adds to what everybody waits: turns are even where workers are
alike, which is the paper's default (SYMPHONY, section 3.3), and uneven where that is better.
"""

from dataclasses import dataclass
from typing import NamedTuple

from services.scheduler.core.turns.kinds import Steps

DECODE_TOKENS = 200  # of an answer, whose length nobody knows before
HIDDEN_SHARE = 0.05  # of a transfer, that is felt though nobody waits for it: links are shared


@dataclass(slots=True, kw_only=True)
class Stay:
    """A turn on a worker.

    Attributes:
        num_rows: turns that it will decode beside.
        num_seats: turns in one step, 0: not known.
        num_waiting_tokens: prompt tokens that are computed before its own.
        num_new_tokens: of its prompt, without its history.
        num_history_tokens: whose KV is somewhere.
        fetch_ms: what bringing that to the device takes; 0: it is there.
        ahead_ms: before it comes; what is brought up meanwhile is not waited for.
        adapter_ms: what bringing up its adapter takes.
    """

    num_rows: float = 0.0
    num_seats: int = 0
    num_waiting_tokens: float = 0.0
    num_new_tokens: float = 0.0
    num_history_tokens: float = 0.0
    fetch_ms: float = 0.0
    ahead_ms: float = 0.0
    adapter_ms: float = 0.0


class Cost(NamedTuple):
    """Attributes:
    queue_ms: until it is its turn.
    kv_ms: for its history and its adapter.
    prompt_ms: for the new part of its prompt.
    decode_ms: for all its further tokens.
    others_ms: what the turns beside it wait longer, all together.
    total_ms: all that.
    """

    queue_ms: float
    kv_ms: float
    prompt_ms: float
    decode_ms: float
    others_ms: float
    total_ms: float


def cost_of(steps: Steps, stay: Stay) -> Cost:
    """What this stay costs on a worker that is so fast.

    >>> from services.scheduler.core.turns.kinds import GUESSED
    >>> idle = cost_of(GUESSED, Stay(num_new_tokens=100))
    >>> busy = cost_of(GUESSED, Stay(num_new_tokens=100, num_rows=4))
    >>> idle.others_ms, round(busy.total_ms - idle.total_ms)
    (0.0, 130)
    """
    token_ms, row_ms, num_rows = steps.token_ms, steps.row_ms, stay.num_rows
    step_ms = steps.step_ms + row_ms * num_rows
    queue_ms = max(stay.num_waiting_tokens * token_ms - stay.ahead_ms, 0.0)
    if num_rows:
        queue_ms += step_ms  # the one that runs
    if stay.num_seats and num_rows >= stay.num_seats:
        num_before = num_rows - stay.num_seats + 1
        full_ms = steps.step_ms + row_ms * stay.num_seats
        queue_ms += num_before / stay.num_seats * DECODE_TOKENS * full_ms
    kv_ms, num_computed = stay.fetch_ms, stay.num_new_tokens
    if stay.fetch_ms:
        kv_ms = HIDDEN_SHARE * stay.fetch_ms + max(stay.fetch_ms - stay.ahead_ms, 0.0)
        again_ms = stay.num_history_tokens * token_ms
        if again_ms * (1 + num_rows) < kv_ms:  # those beside wait for that, too
            kv_ms, num_computed = again_ms, num_computed + stay.num_history_tokens
    kv_ms += max(stay.adapter_ms - stay.ahead_ms, 0.0)
    prompt_ms = stay.num_new_tokens * token_ms
    decode_ms = DECODE_TOKENS * (step_ms + row_ms)
    others_ms = num_rows * (num_computed * token_ms + DECODE_TOKENS * row_ms)
    total_ms = queue_ms + kv_ms + prompt_ms + decode_ms + others_ms
    return Cost(queue_ms, kv_ms, prompt_ms, decode_ms, others_ms, total_ms)
