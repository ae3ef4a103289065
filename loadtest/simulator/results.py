"""What a run was good for: counted over jobs that arrive after the cold start."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.simulator.log import DONE, REASONS, Ints, Record


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model's jobs.

    Attributes:
        num_late: done after their deadline.
        dropped: how many were, by reason.
        batch_sizes: how many jobs ran in a batch of each size.
    """

    name: str
    num_good: int
    num_late: int
    dropped: dict[str, int]
    batch_sizes: dict[int, int]

    @property
    def num_bad(self) -> int:
        return self.num_late + sum(self.dropped.values())

    @property
    def bad_rate(self) -> float:
        return self.num_bad / max(self.num_bad + self.num_good, 1)


@dataclass(frozen=True, slots=True)
class Result:
    """A run.

    Attributes:
        seconds: of arrivals that are counted.
        busy: share of that time that each GPU ran batches.
        batch_p50: the batch size that the median job ran in.
        num_jobs: that came to an end, counted or not.
        was_given_up: it stopped when too much was lost; the numbers are of what came before.
    """

    models: tuple[ModelResult, ...]
    seconds: float
    busy: tuple[float, ...]
    batch_p50: float
    num_jobs: int
    was_given_up: bool = False

    @property
    def num_good(self) -> int:
        return sum(model.num_good for model in self.models)

    @property
    def bad_rate(self) -> float:
        """Over all models."""
        num_bad = sum(model.num_bad for model in self.models)
        return num_bad / max(num_bad + self.num_good, 1)

    @property
    def worst_bad_rate(self) -> float:
        """Of the model that fares worst."""
        return max(model.bad_rate for model in self.models)

    @property
    def good_rps(self) -> float:
        return self.num_good / self.seconds

    @property
    def gpu_busy(self) -> float:
        """Of all GPUs together."""
        return float(np.mean(self.busy))

    def dropped(self) -> dict[str, int]:
        """Over all models, by reason."""
        return {
            reason: total
            for reason in REASONS
            if (total := sum(model.dropped.get(reason, 0) for model in self.models))
        }


def summarise(record: Record, from_ns: int, *, was_given_up: bool = False) -> Result:
    """Count a run's jobs that arrived from `from_ns` on."""
    at_ns = record.arrivals.at_ns
    ran = record.by_job(record.end) == DONE
    refs = record.refs[ran]
    end_ns, size = (record.by_job(column)[ran] for column in (record.end_ns, record.size))
    counted = at_ns[refs] >= from_ns
    refs, end_ns, size = refs[counted], end_ns[counted], size[counted]
    is_dropped = at_ns[record.drop_refs] >= from_ns
    drop_refs, reason = record.drop_refs[is_dropped], record.drop_reason[is_dropped]
    job_model, drop_model = record.arrivals.model[refs], record.arrivals.model[drop_refs]
    deadline_ns = record.deadline_ns[refs]
    models = []
    for index, model in enumerate(record.models):
        mine = job_model == index
        models.append(
            ModelResult(
                name=model.name,
                num_good=int((end_ns[mine] <= deadline_ns[mine]).sum()),
                num_late=int((end_ns[mine] > deadline_ns[mine]).sum()),
                dropped=_by_reason(reason[drop_model == index]),
                batch_sizes=_counts(size[mine]),
            )
        )
    return Result(
        models=tuple(models),
        seconds=(record.arrivals.end_ns - from_ns) / 1e9,
        busy=tuple(busy_shares(record, from_ns, record.arrivals.end_ns).tolist()),
        batch_p50=float(np.median(size)) if len(size) else 0.0,
        num_jobs=len(record.refs) + len(record.drop_refs),
        was_given_up=was_given_up,
    )


def busy_shares(record: Record, from_ns: int, to_ns: int) -> NDArray[np.float64]:
    """Share of an interval that each GPU ran batches, [num_gpus]."""
    ran_ns = np.minimum(record.end_ns, to_ns) - np.maximum(record.start_ns, from_ns)
    total = np.bincount(
        record.gpu, weights=np.maximum(ran_ns, 0).astype(np.float64), minlength=record.num_gpus
    )
    return np.asarray(total / max(to_ns - from_ns, 1), dtype=np.float64)


def _by_reason(reasons: Ints) -> dict[str, int]:
    counts = np.bincount(reasons, minlength=len(REASONS)).tolist()
    return {reason: count for reason, count in zip(REASONS, counts, strict=True) if count}


def _counts(sizes: Ints) -> dict[int, int]:
    values, counts = np.unique(sizes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
