"""Figure 20: how many turns meet their target, by placement, with processes in place of servers."""

import asyncio
from functools import partial

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, marked, new_drawing
from loadtest.papers.caraserve import placing
from loadtest.papers.caraserve.placing import COLOURS, OTHERS, OURS, SLO_MS
from loadtest.papers.llm_servers import Request
from loadtest.papers.real import machine
from loadtest.papers.worker_processes import WorkerProcesses, open_processes
from loadtest.policies.placement import SYSTEMS

KERNEL = "BGMV"  # the paper's own servers
OUTPUT_MAX = 128  # of replies, so that a run takes a minute
SLOWER = 2.0
ATTAINED = 0.85  # by the best of the others, as simulated
RATES = 2.0, 12.0  # requests a second and server, between which that is
POLICIES = (*OURS, *OTHERS)


def measure(work: Work, effort: Effort) -> Results:
    """``{"rate", "policies": {policy: {"attained", "token_ms", ...}}}``; times are as if steps took
    no longer than the kernel's."""
    if missing := placing.missing_traces():
        return {"skipped": f"not here: {missing}"}
    num_servers = effort.pick(2, 8, 8)
    num_requests = effort.pick(12, 400, 1200)
    num_tries = effort.pick(0, 6, 6)
    slower = effort.pick(1.0, SLOWER, SLOWER)
    policies = effort.pick(("cost", "most-idle"), POLICIES, POLICIES)
    rate = _find_rate(num_servers, num_requests, num_tries)
    played = partial(_play_all, num_servers, num_requests, rate, slower)
    (found,) = work.map(lambda each: asyncio.run(played(each)), [policies])
    return {
        "machine": machine(),
        "num_servers": num_servers,
        "num_requests": num_requests,
        "rate": round(rate, 1),
        "slower": slower,
        "policies": found,
    }


def _find_rate(num_servers: int, num_requests: int, num_tries: int) -> float:
    """Requests a second at which the best other policy attains about as much as `ATTAINED`."""
    low, high = RATES
    for _ in range(num_tries):
        rate = (low + high) / 2
        best = max(
            _simulated(policy, num_servers, num_requests, rate * num_servers)[0]
            for policy in OTHERS
        )
        low, high = (rate, high) if best >= ATTAINED else (low, rate)
    return low * num_servers


def _simulated(
    policy: str, num_servers: int, num_requests: int, rate: float
) -> tuple[float, float]:
    requests = _requests(num_requests, rate)
    placing.simulate(KERNEL, policy, num_servers, requests)
    return placing.targets_met(requests)


def _requests(num: int, rate: float) -> list[Request]:
    return placing.make_requests(rate, (num + 0.5) / rate, OUTPUT_MAX)


async def _play_all(
    num_servers: int, num_requests: int, rate: float, slower: float, policies: tuple[str, ...]
) -> Results:
    """One policy after the other, on the same workers."""
    requests = _requests(num_requests, rate)
    adapters = list({each.adapter.adapter_hash: each.adapter for each in requests}.values())
    found = {}
    async with open_processes(KERNEL, slower, num_servers) as processes:
        await processes.load(adapters)
        for policy in policies:
            await processes.teach(adapters)
            real = await _play(processes, policy, _requests(num_requests, rate), slower)
            share, token_ms = _simulated(policy, num_servers, num_requests, rate)
            simulated = {"attained": round(share, 4), "token_ms": round(token_ms, 2)}
            found[policy] = real | {"simulated": simulated}
    return found


async def _play(
    processes: WorkerProcesses, policy: str, requests: list[Request], slower: float
) -> Results:
    for each in requests:
        each.at_ns = int(slower * each.at_ns)
    await processes.play(SYSTEMS[policy].make, requests, slower * SLO_MS)
    share, token_ms = placing.targets_met(requests, slower * SLO_MS)
    steps = processes.steps
    return {
        "attained": round(share, 4),
        "token_ms": round(token_ms / slower, 2),
        "num_steps": steps.num,
        "steps_longer": round(steps.mean_longer, 4),
        "steps_longer_p99": round(steps.p99_longer, 4),
        "num_failed": processes.num_failed,
        "num_moved": processes.num_moved,
    }


def draw(results: Results) -> Drawing:
    """Bars of what was attained and of the time per token, beside what was simulated."""
    drawing = new_drawing(2)
    shown = (("attained", "met, %", 100.0), ("token_ms", "ms a token", 1.0))
    for axes, (name, unit, times) in zip(drawing.subplots(1, 2), shown, strict=True):
        policies = list(results["policies"])
        for at, policy in enumerate(policies):
            found = results["policies"][policy]
            axes.bar(at - 0.2, times * found[name], 0.36, color=COLOURS[policy])
            axes.bar(at + 0.2, times * found["simulated"][name], 0.36, color="#bbbbbb")
        axes.set_xticks(range(len(policies)), policies, fontsize=7)
        label(axes, f"targets of {SLO_MS:g} ms a token; grey: simulated", "", unit)
    drawing.axes[1].set_ylim(bottom=30)
    return drawing


def rows(results: Results) -> list[Row]:
    if "skipped" in results:
        return [Row(results["skipped"], "", "", "not measured")]
    found = results["policies"]
    others = [each for each in found if each in OTHERS]
    best = max(found[each]["attained"] for each in others)
    fastest = min(found[each]["token_ms"] for each in others)
    how = (
        f"real: {results['machine']}, {results['num_servers']} workers as processes, "
        f"{results['num_requests']:,} requests, {results['rate']:g} a second; "
        f"time {results['slower']:g} times as slow"
    )
    lines = []
    for policy, each in found.items():
        is_ours, simulated = policy in OURS, each["simulated"]
        lines.append(
            Row(
                f"{policy}: targets met, % (simulated)",
                "80" if policy == "rank-aware" else "" if is_ours else "less than 80",
                f"{100 * each['attained']:.1f} ({100 * simulated['attained']:.1f})",
                how,
                mark=marked(is_met=each["attained"] >= best) if is_ours else "",
            )
        )
        lines.append(
            Row(
                f"{policy}: time per token, ms (simulated)",
                "",
                f"{each['token_ms']:.2f} ({simulated['token_ms']:.2f})",
                how,
                mark=marked(is_met=each["token_ms"] <= fastest) if is_ours else "",
            )
        )
    mean = max(each["steps_longer"] for each in found.values())
    slow = max(each["steps_longer_p99"] for each in found.values())
    lines += [
        Row(
            "steps took longer than they should, %: all, and the 99th of 100, of the worst run",
            "",
            f"{100 * mean:.1f}, {100 * slow:.1f}",
            how,
        ),
        Row(
            "turns that failed, and that moved",
            "",
            f"{sum(each['num_failed'] for each in found.values())}, "
            f"{sum(each['num_moved'] for each in found.values())}",
            how,
        ),
    ]
    return lines


FIGURE_20 = Figure(
    "20",
    "Figure 20: targets met, by placement, with real processes",
    measure,
    draw,
    rows,
    "NATS, the production scheduler and eight workers without a kvstore as processes, which do all "
    "that they do in service but compute: a step takes as long as the example of the paper's "
    "section 2.3 says for BGMV, by a clock like a GPU's, and what adapters add to it the workers "
    "learn from their own "
    f"steps. All durations and the target are {SLOWER:g} times as long as the paper's, "
    "since eight workers share this machine's cores; the numbers are divided by that. Adapters, "
    "lengths and target are those of Figure 19, but for replies, of at most "
    f"{OUTPUT_MAX} tokens; every adapter is on every worker. The load is that at which the best of "
    f"the other policies attains about {100 * ATTAINED:g}% in the simulator of Figure 19, whose "
    "numbers for the same requests stand in brackets. A turn that has not ended two minutes after "
    "the last came has missed its target.",
)
