"""Metrics of one-shot models."""

from services.worker.oneshot.effects import Ran
from shared.runtime.metrics import counter, histogram
from shared.wire.messages import BatchDone

ONESHOT_BATCHES = counter("oneshot_batches", "Batches of one-shot models", ["model", "outcome"])
ONESHOT_JOBS = counter("oneshot_jobs", "Inputs that one-shot models ran", ["model"])
ONESHOT_RUN_SECONDS = histogram("oneshot_run_seconds", "Batches on the device", ["model"])
ONESHOT_WAIT_SECONDS = histogram("oneshot_wait_seconds", "Batches before their start", ["model"])
ONESHOT_DROPPED = counter("oneshot_events_dropped", "Batches and reports there was no room for")


def count_batch(model_id: str, size: int, ran: Ran) -> None:
    """Add one run of a one-shot model."""
    ONESHOT_RUN_SECONDS.labels(model_id).observe(ran.run_ns / 1e9)
    if ran.values is not None:
        ONESHOT_JOBS.labels(model_id).inc(size)


def count_done(done: BatchDone) -> None:
    """Add one end of a batch."""
    if done.is_refused:
        # The name may be anything that a scheduler sent.
        ONESHOT_BATCHES.labels("", "refused").inc()
        return
    outcome = "ran" if done.size else "failed" if done.run_ns else "empty"
    ONESHOT_BATCHES.labels(done.model_id, outcome).inc()
    ONESHOT_WAIT_SECONDS.labels(done.model_id).observe(done.wait_ns / 1e9)
