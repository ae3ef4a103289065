"""What a worker counts of adapters, between two moments."""

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

RESIDENT = "resident"
STARTS = "symphony_adapter_first_token_seconds"
LOADS = "symphony_adapter_load_seconds"
FAILURES = "symphony_adapter_load_failures_total"


@dataclass(frozen=True, slots=True)
class Observed:
    """Attributes:
    num: of observations.
    seconds: all together.
    """

    num: int = 0
    seconds: float = 0.0

    @property
    def mean_ms(self) -> float:
        """Of one."""
        return self.seconds / self.num * 1e3

    def __sub__(self, before: "Observed") -> "Observed":
        return Observed(self.num - before.num, self.seconds - before.seconds)


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """Attributes:
    starts: first tokens on adapters, by how the turn came to its adapter.
    loads: images that came, by where from.
    load_failures: images that did not come.
    """

    starts: Mapping[str, Observed]
    loads: Mapping[str, Observed]
    load_failures: int

    def since(self, before: "WorkerMetrics") -> "WorkerMetrics":
        """What was counted after `before`."""
        return WorkerMetrics(
            _differences(self.starts, before.starts),
            _differences(self.loads, before.loads),
            self.load_failures - before.load_failures,
        )

    def figures(self) -> dict[str, Any]:
        """For machines; `hit_share` is 0 if nothing began."""
        num_starts = sum(each.num for each in self.starts.values())
        num_hits = self.starts.get(RESIDENT, Observed()).num
        return {
            "hit_share": round(num_hits / max(num_starts, 1), 3),
            "starts": {start: each.num for start, each in self.starts.items()},
            "start_ttft_ms": {start: round(each.mean_ms, 1) for start, each in self.starts.items()},
            "loads": {tier: each.num for tier, each in self.loads.items()},
            "load_ms": {tier: round(each.mean_ms, 1) for tier, each in self.loads.items()},
            "load_failures": self.load_failures,
        }


def read_metrics(port: int) -> WorkerMetrics:
    """What the worker with this metrics port has counted so far.

    Raises:
        OSError: nobody answers.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        return parse_metrics(response.read().decode())


def parse_metrics(text: str) -> WorkerMetrics:
    """From what a worker tells Prometheus."""
    values: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = sample.labels.get("start") or sample.labels.get("source") or ""
            of_label = values.setdefault(sample.name, {})
            of_label[label] = of_label.get(label, 0.0) + sample.value  # of all models
    return WorkerMetrics(
        _observed(values, STARTS),
        _observed(values, LOADS),
        int(values.get(FAILURES, {}).get("", 0)),
    )


def _observed(values: dict[str, dict[str, float]], name: str) -> dict[str, Observed]:
    sums = values.get(f"{name}_sum", {})
    return {
        label: Observed(int(num), sums[label])
        for label, num in values.get(f"{name}_count", {}).items()
    }


def _differences(
    after: Mapping[str, Observed], before: Mapping[str, Observed]
) -> dict[str, Observed]:
    found = {label: each - before.get(label, Observed()) for label, each in after.items()}
    return {label: each for label, each in sorted(found.items()) if each.num}
