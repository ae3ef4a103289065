"""Run times of all models: the workers' profiles, corrected by measured batches."""

from collections.abc import Collection

from services.scheduler.core.batching.job import ModelSpec
from services.scheduler.core.batching.latency import BatchLatency
from services.scheduler.core.jobs.records import ModelKey
from shared.wire.messages import OneshotCard

MARGIN_SHARE_MAX = (
    0.5  # of the target: the safety margin does not extend a batch of one beyond that
)


class Latencies:
    """One `BatchLatency` for each model key.

    Workers that serve the same model are taken as equal: the first one's profile is the prior, and
    every worker's batches correct it.

    Args:
        return_ns: part of the target that is reserved for the results' way back.
    """

    def __init__(self, return_ns: int) -> None:
        self._return_ns = return_ns
        self._latencies: dict[ModelKey, BatchLatency] = {}
        self._versions: dict[ModelKey, int] = {}
        self._slo_ns: dict[ModelKey, int] = {}
        self._profiles: dict[ModelKey, list[int]] = {}
        self._missed: dict[ModelKey, bool] = {}  # without a batch since; True: for a whole interval

    def learn(self, card: OneshotCard) -> list[ModelSpec]:
        """Apply a worker's card; returns the specs that it changes."""
        specs = []
        for variant in card.variants:
            key = ModelKey(card.model_id, card.fingerprint, variant.variant)
            slo_ns = max(int(card.slo_ms * 1e6) - self._return_ns, 1)
            is_same = self._slo_ns.get(key) == slo_ns
            known = self._profiles.get(key)
            if known is None or len(known) > len(variant.batch_ns):
                # Where one worker runs smaller batches, no worker gets larger ones.
                self._profiles[key] = variant.batch_ns
                self._latencies[key] = _from_profile(variant.batch_ns)
                is_same = False
            if not is_same:
                self._slo_ns[key] = slo_ns
                specs.append(self._spec(key))
        return specs

    def observe(self, key: ModelKey, size: int, took_ns: int) -> ModelSpec | None:
        """Learn a batch's run time; returns the new spec if it changes noticeably."""
        self._missed.pop(key, None)
        latency = self._latencies[key]
        latency.observe(size, max(took_ns, 1))
        return self._spec(key) if latency.version != self._versions[key] else None

    def can_do(self, key: ModelKey, num_jobs: int, num_workers: int, time_ns: int) -> bool:
        """Whether so many jobs can be done in this time at best: in the largest batches on all of
        the model's workers, without the safety margin.
        """
        latency = self._latencies[key]
        table = latency.table()
        batch_ns = table[-1] - latency.margin_ns
        return num_jobs * batch_ns <= time_ns * num_workers * (len(table) - 1)

    def miss(self, key: ModelKey) -> None:
        """A job of this model was dropped because it could not be done in time."""
        self._missed.setdefault(key, False)

    def reset_stale(self, running: Collection[ModelKey]) -> list[ModelSpec]:
        """Once an interval: reset models that dropped jobs and ran no batch for an interval since.

        Such a model may have been slower than its target allows for a while, and without batches it
        could never recover, so its profile is used again. Returns the specs that changed.
        """
        for key in running:
            self._missed.pop(key, None)
        stuck = [key for key, is_old in self._missed.items() if is_old]
        self._missed = {key: True for key, is_old in self._missed.items() if not is_old}
        for key in stuck:
            self._latencies[key] = _from_profile(self._profiles[key])
        return [self._spec(key) for key in stuck]

    def _spec(self, key: ModelKey) -> ModelSpec:
        latency = self._latencies[key]
        self._versions[key] = latency.version
        # A few stalls can make a margin that leaves no time to meet the target. Refusing the model
        # would be worse than being late at the next stall.
        first_ns, slo_ns = latency.table()[1], self._slo_ns[key]
        margin_max_ns = max(int(slo_ns * MARGIN_SHARE_MAX) - (first_ns - latency.margin_ns), 0)
        excess_ns = max(latency.margin_ns - margin_max_ns, 0)
        table = [0, *(batch_ns - excess_ns for batch_ns in latency.table()[1:])]
        return ModelSpec(key, table, slo_ns)


def _from_profile(batch_ns: list[int]) -> BatchLatency:
    if len(batch_ns) == 1:  # a line needs two sizes
        return BatchLatency.linear(batch_ns[0], 0.0, size_max=1)
    return BatchLatency.fit(list(enumerate(batch_ns, start=1)), size_max=len(batch_ns))
