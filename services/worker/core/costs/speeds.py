"""The speeds that a worker reports for placement: rarely, because they change rarely."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from services.worker.core.costs.costs import StepCosts
from services.worker.core.engine_limits import Estimates
from shared.ids import ModelId
from shared.wire.messages import ModelSpeeds

MUCH = 0.1  # of a figure, before its change is reported
REPORT_EVERY = 16  # reports: a scheduler that is new knows them after so many
PEERS_MAX = 32
MS_MIN = 1e-4  # of what steps take: 0 would say that it is not known


def speeds_of(
    model_id: ModelId,
    costs: StepCosts,
    estimates: Estimates,
    block_bytes: int,
    adapter_load_ns: float = 0.0,
) -> ModelSpeeds:
    """What is measured of one model. Steps have figures once enough of them ran."""
    token_ms = step_ms = row_ms = 0.0
    if costs.is_known:
        token_ms, step_ms, row_ms = (max(ns / 1e6, MS_MIN) for ns in costs.figures_ns)
    peers = estimates.peer_bytes_per_s.items()
    return ModelSpeeds(
        model_id=model_id,
        token_ms=_rounded(token_ms),
        step_ms=_rounded(step_ms),
        row_ms=_rounded(row_ms),
        mean_rows=costs.mean_rows if costs.is_known else 0,
        block_bytes=block_bytes,
        load_bytes_per_s=_rounded(estimates.load_bytes_per_s),
        source_bytes_per_s=_rounded(estimates.source_bytes_per_s),
        peer_bytes_per_s={host: _rounded(speed) for host, speed in islice(peers, PEERS_MAX)},
        adapter_load_ms=_rounded(adapter_load_ns / 1e6),
    )


@dataclass(slots=True)
class SpeedReports:
    """Which of a worker's speeds go into its next report."""

    _reported: list[ModelSpeeds] = field(default_factory=list)
    _num_since: int = 0

    def next(self, speeds: list[ModelSpeeds]) -> list[ModelSpeeds]:
        """All of them, if they changed much or were not reported for long; else nothing."""
        self._num_since += 1
        is_long_ago = not self._reported or self._num_since >= REPORT_EVERY
        if not is_long_ago and not _differ(self._reported, speeds):
            return []
        self._reported, self._num_since = speeds, 0
        return speeds


def _differ(old: list[ModelSpeeds], new: list[ModelSpeeds]) -> bool:
    if len(old) != len(new):
        return True
    return any(
        before.model_id != after.model_id or _has_changed(_figures(before), _figures(after))
        for before, after in zip(old, new, strict=True)
    )


def _figures(speeds: ModelSpeeds) -> Mapping[str, float]:
    return {
        "token": speeds.token_ms,
        "step": speeds.step_ms,
        "row": speeds.row_ms,
        "load": speeds.load_bytes_per_s,
        "source": speeds.source_bytes_per_s,
        "adapter": speeds.adapter_load_ms,
        **{f"peer {host}": speed for host, speed in speeds.peer_bytes_per_s.items()},
    }


def _has_changed(old: Mapping[str, float], new: Mapping[str, float]) -> bool:
    if old.keys() != new.keys():
        return True
    return any(abs(new[name] - value) > MUCH * max(value, new[name]) for name, value in old.items())


def _rounded(figure: float) -> float:
    """To four digits: reports are short."""
    return float(f"{figure:.4g}")
