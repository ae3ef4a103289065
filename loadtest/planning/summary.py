"""A plan as an object of plain values: what `--json` prints, and what the terminal shows."""

from dataclasses import asdict
from typing import Any

from loadtest.cluster.plant import DRAM_SHARE, GIB
from loadtest.cluster.result import ClusterResult, Spread
from loadtest.cluster.worker import PREFILL_TOKENS_MAX, TURNS_RUNNING_MAX
from loadtest.planning.machines import Machines
from loadtest.planning.plan import Plan, Question, Tried

DAY_S = 86_400
PLACES = {"pool": "gpu", "host": "host_memory", "disk": "disk", "peer": "other_hosts"}


def summarize(plan: Plan) -> dict[str, Any]:
    """All that is worth telling of it."""
    question = plan.question
    demand, best = question.demand, plan.best
    gpus = best.seen.gpus
    without = plan.without_hints.get(gpus)
    return {
        "profile": asdict(question.profile),
        "users": demand.users,
        "context_tokens": demand.context,
        "longest_history_tokens": demand.history_range[1],
        "reply_tokens": demand.reply,
        "hinted_share": demand.hinted,
        "targets": asdict(question.targets),
        "is_enough": plan.gpus is not None,
        "gpus": gpus,
        "hosts": num_hosts(gpus, question.machines),
        "guess": asdict(plan.estimate),
        "seen": _seen(best),
        "fewer": None if plan.short is None or plan.gpus is None else _seen(plan.tried[plan.short]),
        "without_hints": None
        if without is None
        else {"gpus": plan.gpus_without_hints, "seen": _seen(without)},
        "sessions": _sessions(question, gpus),
        "settings": _settings(question.machines),
        "machines": asdict(question.machines),
        "seed": question.seed,
        "runs": [
            _run(tried, is_hinted)
            for is_hinted, some in ((True, plan.tried), (False, plan.without_hints))
            for tried in some.values()
        ],
    }


def num_hosts(gpus: int, machines: Machines) -> int:
    """That so many GPUs stand in."""
    return -(-gpus // machines.gpus)


def history_shares(result: ClusterResult) -> dict[str, float]:
    """Where turns found the history that they came with; together 1, or nothing if there was none.
    What an advisory prefetched is on the GPU."""
    found = {name: result.cached_tokens.get(place, 0) for place, name in PLACES.items()}
    found["recomputed"] = result.recomputed_tokens
    total = sum(found.values())
    return {name: round(num / total, 4) for name, num in found.items()} if total else {}


def _seen(tried: Tried) -> dict[str, Any]:
    seen, result = tried.seen, tried.seen.result
    return {
        "gpus": seen.gpus,
        "turns": result.turns,
        "ttft_ms": _spread(result.ttft_ms),
        "tpot_ms": _spread(result.tpot_ms),
        "history": history_shares(result),
        "missed": tried.missed,
        "simulated": {
            "users": seen.part.users,
            "gpus": seen.part.gpus,
            "host_share": seen.part.host_share,
            "seconds": round(seen.seconds, 1),
        },
    }


def _run(tried: Tried, is_hinted: bool) -> dict[str, Any]:
    result = tried.seen.result
    return {
        "gpus": tried.seen.gpus,
        "hints": is_hinted,
        "is_enough": not tried.missed,
        "ttft_p95_ms": round(result.ttft_ms.p95, 1),
        "tpot_p95_ms": round(result.tpot_ms.p95, 1),
    }


def _spread(spread: Spread) -> dict[str, float]:
    return {name: round(value, 1) for name, value in asdict(spread).items()}


def _sessions(question: Question, gpus: int) -> dict[str, float]:
    """Bytes: what everybody's history takes, what of it host memory and pools have room for, and
    what is new on a host's disk every day, if people chat all day."""
    demand, token_bytes = question.demand, question.profile.kv_bytes_per_token
    hosts = num_hosts(gpus, question.machines)
    answer_s = demand.reply_tokens * question.targets.tpot_ms / 1e3
    turns_per_s = demand.users / (demand.think_s + answer_s)
    new_tokens = demand.new_tokens + demand.reply_tokens
    return {
        "bytes_per_token": token_bytes,
        "bytes": demand.users * demand.context * token_bytes,
        "gpu_bytes": gpus * question.profile.num_kv_tokens * token_bytes,
        "host_memory_bytes": hosts * int(question.machines.dram_gb * GIB * DRAM_SHARE),
        "disk_bytes": hosts * question.machines.disk_gb * 1e9,
        "new_bytes_per_host_and_day": turns_per_s * new_tokens * token_bytes * DAY_S / hosts,
    }


def _settings(machines: Machines) -> dict[str, int]:
    """What was simulated, as settings of a deployment."""
    return {
        "SYMPHONY_ARENA_BYTES": int(machines.dram_gb * GIB * DRAM_SHARE),
        "SYMPHONY_DISK_BYTES_MAX": int(machines.disk_gb * 1e9),
        "SYMPHONY_TURNS_RUNNING_MAX": TURNS_RUNNING_MAX,
        "SYMPHONY_PREFILL_TOKENS_MAX": PREFILL_TOKENS_MAX,
    }
