"""Runs of simulated clusters, each done once for all figures of a command."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.result import ClusterResult
from loadtest.papers.base import Effort, Results, Work
from loadtest.sim.timeline import SECOND
from loadtest.workloads.registry import why_absent

TESTBED_GPUS = 8
LLAMA_13B = "a100-llama2-13b"
CHATS = "sharegpt-busy"
NOTHING_KEPT = frozenset({"cooperative"})  # in pools, between turns
# With the options that make each. `recompute` and `migrate` by themselves would find what happens
# to be in the worker's own pool, as vLLM does with its prefix cache; the paper's computed all.
SYSTEMS: dict[str, dict[str, Any]] = {
    "symphony": {},
    "recompute": {"policy": "recompute", "without": NOTHING_KEPT},
    "prefix-cache": {"policy": "recompute"},
    "sticky": {"policy": "sticky"},
    "migrate": {"policy": "migrate", "without": NOTHING_KEPT},
    "migrate-sticky": {"policy": "migrate-sticky"},
    "remote": {"policy": "remote"},
    "without cooperative": {"without": frozenset({"cooperative"})},
    "without priority": {"without": frozenset({"priority"})},
    "without layerwise": {"without": frozenset({"layerwise"})},
    "without balance": {"without": frozenset({"balance"})},
}
NAMES = {
    "symphony": "ours",
    "recompute": "recompute (vLLM)",
    "prefix-cache": "recompute what is not in the pool (vLLM with its prefix cache)",
    "sticky": "sticky (InferCept)",
    "migrate": "migrate (Llumnix)",
    "migrate-sticky": "migrate-sticky (Llumnix + InferCept)",
    "remote": "remote (LMCache)",
}
COLOURS = {
    "symphony": "#c0392b",
    "recompute": "#2e86c1",
    "sticky": "#239b56",
    "migrate": "#7d3c98",
    "migrate-sticky": "#5d6d7e",
    "remote": "#e08e45",
    "prefix-cache": "#85c1e9",
}
READING_WARM_NS = 180 * SECOND  # until most of who read an answer are at their second one
_KNOWN: dict[ClusterOptions, Results] = {}


def options(effort: Effort, **changes: Any) -> ClusterOptions:
    """The paper's testbed, or half of it for short runs: users are scaled with it, so `users` are
    always those of eight GPUs. Everybody has begun before anything counts."""
    gpus = effort.pick(2, 4, TESTBED_GPUS)
    plain = ClusterOptions(
        gpus=gpus,
        gpus_per_host=effort.pick(1, 2, 4),
        dram_gb=effort.pick(64.0, 128.0, 256.0),
        warm_ns=effort.pick(0, 20, 60) * SECOND,
        duration_ns=effort.pick(5, 40, 60) * SECOND,
        trace=CHATS,
    )
    asked = replace(plain, **changes)
    return replace(asked, users=max(asked.users * gpus // TESTBED_GPUS, 1))


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
    """Of a run, what figures show: milliseconds are means."""
    workflows = result.workflow_s
    history = result.recomputed_tokens
    return {
        "turns": result.turns,
        "unfinished": result.unfinished,
        "ttft_ms": round(result.ttft_ms.mean, 2),
        "ttft_p99_ms": round(result.ttft_ms.p99, 2),
        "tpot_ms": round(result.tpot_ms.mean, 3),
        "normalized_ms": round(result.normalized_ms.mean, 3),
        "requests_per_s": round(result.requests_per_s, 3),
        "load_max_over_median": round(result.load_max_over_median, 3),
        "load_max_minus_min": round(result.load_max_minus_min, 2),
        "recomputed_percent": round(100 * history / max(result.prompt_tokens, 1), 2),
        "by_priority": {
            name: {what: round(spread.mean, 3) for what, spread in spreads.items()}
            for name, spreads in result.by_priority.items()
        },
        "workflow_s": round(sum(workflows) / len(workflows), 2) if workflows else 0.0,
    }
