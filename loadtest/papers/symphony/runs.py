"""Runs of simulated clusters, each done once for all figures of a command."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.result import ClusterResult
from loadtest.papers.base import Effort, Results, Work
from loadtest.papers.symphony.evidence import shares_of
from loadtest.sim.timeline import SECOND
from loadtest.workloads.registry import why_absent

TESTBED_GPUS = 8
LLAMA_13B = "a100-llama2-13b"
LLAMA_70B = str(Path(__file__).with_name("a100x4-llama3.1-70b.json"))  # see FIGURE_70B
DOCUMENTS = "documents"
CHATS = "sharegpt-like"
NOTHING_KEPT = frozenset({"prefix-cache"})  # in pools, between turns
LRU = {"eviction": "lru"}  # the order of the other systems
# With the options that make each. `recompute` and `migrate` by themselves would find what happens
# to be in the worker's own pool, as vLLM does with its prefix cache; the paper's computed all.
# LMCache loads when the turn is there, all of it before the pass, and unpacks it on the GPU.
SYSTEMS: dict[str, dict[str, Any]] = {
    "symphony": {},
    "no hints": {"missed": 1.0},
    "recompute": {"policy": "recompute", "without": NOTHING_KEPT, **LRU},
    "prefix-cache": {"policy": "recompute", **LRU},
    "sticky": {"policy": "sticky", **LRU},
    "migrate": {"policy": "migrate", "without": NOTHING_KEPT, **LRU},
    "migrate-sticky": {"policy": "migrate-sticky", **LRU},
    "remote": {
        "policy": "remote",
        "packing": "cachegen",
        "without": frozenset({"layerwise"}),
        **LRU,
    },
    "symphony, int8 below": {"packing": "int8"},
    "without cooperative": {"without": frozenset({"cooperative"})},
    "without priority": LRU,
    "without layerwise": {"without": frozenset({"layerwise"})},
    "without balance": {"without": frozenset({"balance"})},
}
NAMES = {
    "symphony": "ours",
    "no hints": "ours without hints",
    "recompute": "recompute (vLLM)",
    "prefix-cache": "recompute what is not in the pool (vLLM with its prefix cache)",
    "sticky": "sticky (InferCept)",
    "migrate": "migrate (Llumnix)",
    "migrate-sticky": "migrate-sticky (Llumnix + InferCept)",
    "remote": "remote (LMCache)",
}
COLOURS = {
    "symphony": "#c0392b",
    "no hints": "#e6b0aa",
    "recompute": "#2e86c1",
    "sticky": "#239b56",
    "migrate": "#7d3c98",
    "migrate-sticky": "#5d6d7e",
    "remote": "#e08e45",
    "prefix-cache": "#85c1e9",
}
_KNOWN: dict[ClusterOptions, Results] = {}


def options(effort: Effort, **changes: Any) -> ClusterOptions:
    """The paper's testbed, or a part of its hosts for short runs: users are scaled with it, so
    `users` are always those of eight GPUs. Everybody has begun before anything counts."""
    workers = changes.pop("workers", TESTBED_GPUS)
    gpus = effort.pick(2, max(workers // 2, 2), workers)
    plain = ClusterOptions(
        gpus=gpus,
        gpus_per_host=gpus // 2,
        host_share=gpus / workers,
        warm_ns=effort.pick(0, 210, 210) * SECOND,
        duration_ns=effort.pick(5, 120, 120) * SECOND,
        trace=DOCUMENTS,
        grouped=True,
    )
    asked = replace(plain, **changes)
    return replace(asked, users=max(asked.users * gpus // workers, 1))


def run_all(work: Work, wanted: Iterable[ClusterOptions]) -> list[Results]:
    """Of each what `summary` says; `{"skipped": why}` of those whose workload is not here."""
    asked = list(wanted)
    missing = [each for each in dict.fromkeys(asked) if each not in _KNOWN]
    _KNOWN.update(zip(missing, work.map(simulate, missing), strict=True))
    return [_KNOWN[each] for each in asked]


def simulate(asked: ClusterOptions) -> Results:
    """One run."""
    from loadtest.cluster.run import run_cluster

    if why := why_absent(asked.trace):
        return {"skipped": why}
    return summary(run_cluster(asked))


def summary(result: ClusterResult) -> Results:
    """Of a run, what figures show: milliseconds are means. TTFT is that of returning turns."""
    workflows, ttft = result.workflow_s, result.return_ttft_ms
    return {
        "turns": result.turns,
        "unfinished": result.unfinished,
        "ttft_ms": round(ttft.mean, 2),
        "ttft_p50_ms": round(ttft.p50, 2),
        "ttft_p99_ms": round(ttft.p99, 2),
        "tpot_ms": round(result.tpot_ms.mean, 3),
        "normalized_ms": round(result.normalized_ms.mean, 3),
        "requests_per_s": round(result.requests_per_s, 3),
        "load_max_over_median": round(result.load_max_over_median, 3),
        "load_max_minus_min": round(result.load_max_minus_min, 2),
        "shares": shares_of(result),
        "by_priority": {
            name: {what: round(spread.mean, 3) for what, spread in spreads.items()}
            for name, spreads in result.by_priority.items()
        },
        "workflow_s": round(sum(workflows) / len(workflows), 2) if workflows else 0.0,
    }
