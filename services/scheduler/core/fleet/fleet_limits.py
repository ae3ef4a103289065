"""Numbers that bound and time the scheduler's decisions."""

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Durations in ns, bounds in entries.

    Attributes:
        learning_ns: after its start the scheduler places nothing for this long, so that it first
            receives the workers' reports and does not place everything on the first worker.
        dead_after_ns: silence after which a worker counts as dead; never less than three of its
            report intervals.
        forget_after_ns: silence after which a dead worker is forgotten.
        placement_wait_ns: how long a turn waits for a worker that serves its model, while there is
            none.
        queue_wait_ns: how long a turn waits at most for a worker that has room for it.
        quarantine_wait_ns: how long a quarantined turn waits for a worker without turns before one
            is emptied for it.
        proof_wait_ns: how long a quarantined turn whose worker fell silent waits for the proof that
            the worker died.
        affinity_ns: how long after a session's last turn its worker is preferred.
        affinity_margin: turns more than the least loaded worker that a session's last worker may
            have and still be preferred: its pages hold the session's KV.
        losses_max: consecutive losses, without a token between them, after which a turn fails.
        deaths_shared_max: consecutive losses of workers, without a token between them, after which
            a turn is quarantined: it shares no worker, so that it can crash no other turns.
        deaths_proven_max: consecutive proven deaths of workers, without a token between them, after
            which a turn fails if it was alone on the last one. Two may have other causes: a worker
            that died while the turn was sent there counts, too.
        near_ns: how long before its expected turn a reservation counts as load.
        moved_tokens_min: tokens that a running turn probably has left for a move to be worth while.
        losses_kept_max: turns remembered of one silent worker.
    """

    learning_ns: int = 750_000_000
    dead_after_ns: int = 5 * SECOND_NS // 2
    forget_after_ns: int = 60 * SECOND_NS
    placement_wait_ns: int = 15 * SECOND_NS
    queue_wait_ns: int = 60 * SECOND_NS
    quarantine_wait_ns: int = 5 * SECOND_NS
    proof_wait_ns: int = 12 * SECOND_NS
    affinity_ns: int = 600 * SECOND_NS
    affinity_margin: int = 1
    near_ns: int = 30 * SECOND_NS
    losses_max: int = 8
    deaths_shared_max: int = 2
    deaths_proven_max: int = 3
    moved_tokens_min: int = 32
    losses_kept_max: int = 1024
    turns_max: int = 100_000
    ended_max: int = 100_000
    reservations_max: int = 100_000
    sessions_max: int = 100_000
