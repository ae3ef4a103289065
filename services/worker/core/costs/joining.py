"""When a prompt whose history is loading joins a step.

A pass waits, layer by layer, for the history of every row in it, and all rows wait together. So a
prompt joins when every layer will be there no later than the pass comes to it, and until then its
layers keep coming while others decode. It joins a little before that where its own gain is more
than what all others lose.
"""

from collections.abc import Sequence

ALONE_NS = 2_000_000  # so long a pass may wait with one prompt alone: another could come meanwhile
PATIENCE_MIN_NS = 5_000_000  # what threads that hand pages over may be late by anyway


def stall_ns(arrivals: Sequence[int], starts_at_ns: int, pass_ns: int) -> int:
    """How long a pass would wait, in all, for layers that come at these times (0: is here). It goes
    through its layers evenly, and a wait in one puts off all that follow.

    >>> stall_ns([0, 120, 150], starts_at_ns=100, pass_ns=60)
    10
    """
    layer_ns = pass_ns / len(arrivals)
    waits = (at_ns - starts_at_ns - layer * layer_ns for layer, at_ns in enumerate(arrivals))
    return max(int(max(waits)), 0)


def gains(wait_ns: int, num_others: int, step_ns: int) -> bool:
    """Whether to join a step that would wait so long for this prompt's history.

    If it does not, the others' step takes `step_ns` meanwhile, and the prompt comes after it: later
    by what it would not have had to wait for anyway.

    >>> gains(0, 8, 20), gains(1, 8, 20), gains(5, 8, 20), gains(25, 0, 20)
    (True, True, False, True)
    """
    if not num_others:
        return wait_ns <= ALONE_NS
    return not wait_ns or num_others * wait_ns < step_ns - wait_ns


def patience_ns(wait_ns: int, num_others: int, step_ns: int, give_up_in_ns: int) -> int:
    """How long a pass may wait for a row that was forecast to keep it waiting for `wait_ns`: with
    others in it, for as long again as a step of theirs takes, or else until the row is better
    computed.
    """
    limit_ns = give_up_in_ns if not num_others else min(wait_ns + step_ns, give_up_in_ns)
    return max(limit_ns, PATIENCE_MIN_NS)
