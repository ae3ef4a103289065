"""The whole deployment as one object, for the dashboard: the status of every process, and what
their counters gained lately.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shared.ids import TenantId
from shared.runtime.exposition import Sample
from shared.wire.deployment_view import hints_of, tiers_of, whole_status
from shared.wire.messages import KvStats, SchedulerStatus, ServiceStatus, WorkerStatus

Labels = Mapping[str, str]

WINDOW_NS = 30_000_000_000  # what rates and times are of
# What is read of the metrics of all processes.
COUNTERS = frozenset({
    "request_success_total", "http_errors_total", "prompt_tokens_total", "generation_tokens_total",
    "advisories_total", "agent_hints_total", "scheduler_placements_total", "kv_staged_pages_total",
    "kv_peer_bytes_total", "batches_total", "batch_jobs_total", "jobs_total",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total",
    "turns_paused_total", "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
})  # fmt: skip
GAUGES = frozenset({
    "turns_running", "turns_waiting", "num_requests_running", "autoscale_add", "autoscale_remove",
    "jobs_bad_rate", "jobs_idle_share", "adapters", "lora_requests_info",
})  # fmt: skip
WANTED = COUNTERS | GAUGES
LATENCIES = {
    "ttft": "time_to_first_token_seconds_bucket",
    "inter_token": "inter_token_latency_seconds_bucket",
}
QUANTILES = {"p50": 0.5, "p99": 0.99}
RATES = {
    "requests": "request_success_total",
    "errors": "http_errors_total",
    "prompt_tokens": "prompt_tokens_total",
    "generated_tokens": "generation_tokens_total",
    "preemptions": "num_preemptions_total",
    "pauses": "turns_paused_total",
}
SCALING = {
    "add": "autoscale_add",
    "remove": "autoscale_remove",
    "bad_rate": "jobs_bad_rate",
    "idle_share": "jobs_idle_share",
}

_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of all processes, at one moment.

    Attributes:
        services: by name.
        samples: of `WANTED`, of all processes.
    """

    services: Mapping[str, ServiceStatus]
    schedulers: Sequence[SchedulerStatus]
    stores: Sequence[KvStats]
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class _Counted:
    at_ns: int
    totals: Mapping[_Key, float]
    processes: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Lately:
    """What counters gained in the last seconds."""

    gained: Mapping[_Key, float]
    seconds: float

    def by(self, name: str, label: str) -> dict[str, float]:
        """A counter's gains, summed by the value of a label."""
        sums: dict[str, float] = defaultdict(float)
        for (of, labels), value in self.gained.items():
            if of == name:
                sums[dict(labels).get(label, "")] += value
        return dict(sums)

    def per_s(self, name: str, label: str) -> dict[str, float]:
        """The same per second, of what gained something."""
        return {
            value: round(num / self.seconds, 3)
            for value, num in self.by(name, label).items()
            if num and self.seconds
        }

    def all_per_s(self, name: str) -> float:
        """A counter's gain per second."""
        return round(self.all(name) / self.seconds, 3) if self.seconds else 0.0

    def all(self, name: str) -> float:
        """A counter's gain."""
        return sum(self.by(name, "").values())

    def cached_share(self) -> float | None:
        """Of prompt tokens that were looked for in caches, how many were found; None: of none."""
        asked = self.all("prefix_cache_queries_total")
        return round(self.all("prefix_cache_hits_total") / asked, 4) if asked else None


class DeploymentView:
    """Fed with answers every few seconds."""

    def __init__(self) -> None:
        self._counted: deque[_Counted] = deque()

    def on_answers(self, answers: Answers, now_ns: int, wall_s: float) -> dict[str, Any]:
        """The deployment now. Rates are of the last half minute, or since the first viewer."""
        lately = self._gained(answers.samples, now_ns)
        scheduler = whole_status(list(answers.schedulers)) or SchedulerStatus()
        return {
            "at": wall_s,
            "window_s": round(lately.seconds, 1),
            **_services(answers.services),
            "hosts": _hosts(scheduler.workers, answers.stores),
            "workers": _workers(scheduler.workers, answers.samples),
            "turns": {
                "running": _now(answers.samples, "turns_running"),
                "waiting": _now(answers.samples, "turns_waiting") + scheduler.num_turns_waiting,
                "placed": scheduler.num_turns_placed,
                "expected": scheduler.num_reservations,
            },
            "sessions": max((store.num_sessions for store in answers.stores), default=0),
            "tiers": tiers_of(answers.stores),
            "rates": {name: lately.all_per_s(of) for name, of in RATES.items()},
            "cached_share": lately.cached_share(),
            "latency_ms": {name: _latency(lately, of) for name, of in LATENCIES.items()},
            "placements": lately.per_s("scheduler_placements_total", "reason"),
            "staged_pages": lately.per_s("kv_staged_pages_total", "tier"),
            "peer_bytes": lately.per_s("kv_peer_bytes_total", "direction"),
            "advisories": _advisories(answers.services, lately),
            "batches": _batches(lately),
            "windows": [asdict(window) for window in scheduler.windows],
            "adapters": _adapters(answers.samples),
            "scaling": {name: _latest(answers.samples, of) for name, of in SCALING.items()},
        }

    def _gained(self, samples: Sequence[Sample], now_ns: int) -> "_Lately":
        """What counters gained since the beginning of the window. One that is smaller than it was
        has restarted: then it gained all that it has.
        """
        totals = {
            (name, tuple(sorted(labels.items()))): value
            for name, labels, value in samples
            if name in COUNTERS
        }
        counted = self._counted
        if counted and counted[-1].at_ns < now_ns - WINDOW_NS:
            counted.clear()  # there was no viewer
        while len(counted) > 1 and counted[1].at_ns <= now_ns - WINDOW_NS:
            counted.popleft()
        processes = frozenset(labels.get("process", "") for _, labels, _ in samples)
        counted.append(_Counted(now_ns, totals, processes))
        first = counted[0]
        gained = {}
        for key, value in totals.items():
            if dict(key[1]).get("process", "") not in first.processes:
                continue  # what it counted before it was first seen is not recent
            before = first.totals.get(key, 0.0)
            gained[key] = value - before if value >= before else value
        return _Lately(gained, (now_ns - first.at_ns) / 1e9)


def for_tenant(view: Mapping[str, Any], tenant: TenantId) -> dict[str, Any]:
    """What a tenant may see: of figures by tenant its own, and no names of adapters, which may be
    another's."""
    advisories = view["advisories"]
    own = {
        name: [one for one in advisories[name] if one["tenant"] == tenant]
        for name in ("rates", "throttled")
    }
    hidden: dict[str, list[str]] = {"running": [], "waiting": []}
    return {**view, "advisories": {**advisories, **own}, "adapters": {**view["adapters"], **hidden}}


def _services(services: Mapping[str, ServiceStatus]) -> dict[str, Any]:
    """Which processes run, and which models they serve."""
    return {
        "services": [
            {"service": each.service, "name": name, "pid": each.pid, "state": each.state}
            for name, each in sorted(services.items())
        ],
        "models": sorted({name for each in services.values() for name in each.models}),
    }


def _advisories(services: Mapping[str, ServiceStatus], lately: _Lately) -> dict[str, Any]:
    return {
        **hints_of([each.hints for each in services.values() if each.hints is not None]),
        "outcomes": lately.per_s("advisories_total", "outcome"),
        "of_agents": lately.per_s("agent_hints_total", "outcome"),
    }


def _now(samples: Iterable[Sample], name: str) -> int:
    return int(sum(value for of, _, value in samples if of == name))


def _latest(samples: Iterable[Sample], name: str) -> float:
    """Of a gauge that one process sets: the largest, since standbys set none."""
    return max((value for of, _, value in samples if of == name), default=0.0)


def _hosts(workers: Sequence[WorkerStatus], stores: Sequence[KvStats]) -> list[dict[str, Any]]:
    names = {str(worker.host_id) for worker in workers} | {store.host_id for store in stores}
    return [
        {
            "host_id": name,
            "has_kvstore": any(store.host_id == name for store in stores),
            "workers": [worker.worker_id for worker in workers if worker.host_id == name],
            **tiers_of([store for store in stores if store.host_id == name]),
        }
        for name in sorted(names)
    ]


def _workers(workers: Sequence[WorkerStatus], samples: Sequence[Sample]) -> list[dict[str, Any]]:
    running: dict[str, float] = defaultdict(float)
    waiting: dict[str, float] = defaultdict(float)
    for name, labels, value in samples:
        if name == "turns_running":
            running[labels.get("process", "")] += value
        elif name == "turns_waiting":
            waiting[labels.get("process", "")] += value
    return [
        {
            **asdict(worker),
            "num_running": int(running[worker.worker_id]),
            "num_waiting": int(waiting[worker.worker_id]),
        }
        for worker in workers
    ]


def _latency(lately: _Lately, name: str) -> dict[str, float | None]:
    """Quantiles of a histogram, ms, within a bucket as if all were spread evenly over it."""
    buckets: dict[float, float] = defaultdict(float)
    for bound, num in lately.by(name, "le").items():
        buckets[float(bound)] += num
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if not total:
        return dict.fromkeys(QUANTILES)
    return {label: _quantile(bounds, buckets, share * total) for label, share in QUANTILES.items()}


def _quantile(bounds: Sequence[float], buckets: Mapping[float, float], rank: float) -> float:
    low_s, num_below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            if bound == float("inf"):
                break
            share = (rank - num_below) / (buckets[bound] - num_below)
            return round(1e3 * (low_s + share * (bound - low_s)), 2)
        low_s, num_below = bound, buckets[bound]
    return round(1e3 * low_s, 2)


def _batches(lately: _Lately) -> list[dict[str, Any]]:
    """Of one-shot models that ran some."""
    batches, jobs = (lately.by(name, "model") for name in ("batches_total", "batch_jobs_total"))
    seconds = lately.seconds
    return [
        {
            "model": model,
            "batches_per_s": round(num / seconds, 3),
            "jobs_per_s": round(jobs.get(model, 0.0) / seconds, 3),
            "mean_size": round(jobs.get(model, 0.0) / num, 2),
        }
        for model, num in sorted(batches.items())
        if num and seconds
    ]


def _adapters(samples: Sequence[Sample]) -> dict[str, Any]:
    """How many are known, and which run and wait by the latest report of each worker."""
    latest: dict[tuple[str, str], tuple[float, Labels]] = {}
    for name, labels, value in samples:
        key = labels.get("process", ""), labels.get("model", "")
        if name == "lora_requests_info" and value > latest.get(key, (0.0, labels))[0]:
            latest[key] = value, labels
    reported = [labels for _, labels in latest.values()]
    return {
        "known": int(_latest(samples, "adapters")),
        "running": _names(reported, "running_lora_adapters"),
        "waiting": _names(reported, "waiting_lora_adapters"),
    }


def _names(reported: Iterable[Labels], label: str) -> list[str]:
    names = (name for labels in reported for name in labels.get(label, "").split(","))
    return sorted({name for name in names if name})
