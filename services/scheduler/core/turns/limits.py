"""Numbers that bound and time the scheduler's decisions."""

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Durations in ns, bounds in entries.

    Attributes:
        learning_ns: after its start the scheduler places nothing for this long, so that it first
            hears from the workers what they already run, and does not give the first worker heard
            of everything.
        dead_after_ns: silence after which a worker counts as dead; never less than three of its
            report intervals.
        forget_after_ns: silence after which nothing of a dead worker is kept.
        placement_wait_ns: how long a turn waits for a worker that serves its model.
        trial_wait_ns: how long a suspect waits for a worker without turns before one is emptied
            for it.
        proof_wait_ns: how long a suspect whose worker fell silent waits for the proof that it died.
        affinity_ns: how long after a session's last turn its worker is worth preferring.
        affinity_margin: turns more than the least loaded worker that a session's last worker may
            have and still be preferred: its pages hold the session's KV.
        losses_max: times in a row, without a token between, that a turn may be lost before it is
            given up.
        deaths_shared_max: losses of workers in a row, without a token between, after which a turn
            is a suspect and shares no worker any more, so that it takes no others along.
        deaths_proven_max: proven deaths of workers in a row, without a token between, after which
            a turn fails if it was alone with the last one. Two can be of others: a worker that
            died as the turn was sent there counts, too.
        near_ns: before its turn is expected, from when on a reservation counts as load.
        losses_kept_max: turns of a silent worker of which it is remembered that they were there.
    """

    learning_ns: int = 750_000_000
    dead_after_ns: int = 5 * SECOND_NS // 2
    forget_after_ns: int = 60 * SECOND_NS
    placement_wait_ns: int = 15 * SECOND_NS
    trial_wait_ns: int = 5 * SECOND_NS
    proof_wait_ns: int = 12 * SECOND_NS
    affinity_ns: int = 600 * SECOND_NS
    affinity_margin: int = 1
    near_ns: int = 30 * SECOND_NS
    losses_max: int = 8
    deaths_shared_max: int = 2
    deaths_proven_max: int = 3
    losses_kept_max: int = 1024
    turns_max: int = 100_000
    ended_max: int = 100_000
    reservations_max: int = 100_000
    sessions_max: int = 100_000
