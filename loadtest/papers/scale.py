"""Figures 13 and 14: many requests, many GPUs, slow networks."""

import os

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import (
    OURS,
    Effort,
    Figure,
    Results,
    Row,
    Work,
    colour,
    label,
    marked,
    new_drawing,
    ratio,
    searches,
)
from loadtest.papers.overload import RESNET_100
from loadtest.papers.scheduler_alone import Share, measure_shares
from loadtest.simulator.models import MS_NS, copies, linear_model
from loadtest.simulator.scenario import Scenario
from services.scheduler.core.batching.job import Delays

PAPER_PER_CORE = 375_000  # 12 million on 32 cores


def measure_13(work: Work, effort: Effort) -> Results:
    """Left: the core alone, by threads and by GPUs. Right: goodput by GPUs."""
    num_jobs = effort.pick(2_000, 150_000, 1_000_000)
    cores = os.cpu_count() or 1
    by_threads = {}
    for num_threads in effort.pick([1], [1, cores], sorted({1, 2, *range(4, cores, 4), cores})):
        shares = [Share(16, 128, num_jobs, 0.9, OURS[0], seed) for seed in range(num_threads)]
        by_threads[str(num_threads)] = round(measure_shares(shares))
    by_gpus = {
        str(num_gpus): round(measure_shares([Share(32, num_gpus, num_jobs, 0.9, OURS[0], 1)]))
        for num_gpus in effort.pick([64], [128, 1024], [64, 128, 256, 512, 1024, 2048, 4096])
    }
    sizes = effort.pick([4], [16, 32, 64], [16, 32, 64, 128, 256])
    base = Scenario(models=tuple(copies(RESNET_100, 20)), num_gpus=1)
    scenarios = [base.changed(policy=policy, num_gpus=size) for policy in OURS for size in sizes]
    rates = iter(value["rps"] for value in searches(work, effort, scenarios))
    return {
        "by_threads": by_threads,
        "by_gpus": by_gpus,
        "gpus": sizes,
        "goodput_rps": {policy: [next(rates) for _ in sizes] for policy in OURS},
    }


def draw_13(results: Results) -> Drawing:
    """The core's rate in millions a second, and goodput."""
    drawing = new_drawing(3)
    threads = [int(number) for number in results["by_threads"]]
    axes = drawing.add_subplot(1, 3, 1)
    axes.plot(threads, [rate / 1e6 for rate in results["by_threads"].values()], "o-", label="ours")
    axes.plot(threads, [PAPER_PER_CORE * n / 1e6 for n in threads], "k:", label="paper, a core")
    axes.set_ylim(bottom=0)
    label(axes, "Scheduler alone", "threads", "million requests/s")
    axes.legend(fontsize=7)
    axes = drawing.add_subplot(1, 3, 2)
    gpus = [int(number) for number in results["by_gpus"]]
    axes.semilogx(gpus, [rate / 1e6 for rate in results["by_gpus"].values()], "o-", base=2)
    axes.set_ylim(bottom=0)
    label(axes, "Scheduler alone, one thread", "GPUs", "million requests/s")
    axes = drawing.add_subplot(1, 3, 3)
    for policy, rates in results["goodput_rps"].items():
        shown = [rps / 1e3 for rps in rates]
        axes.plot(results["gpus"], shown, "o-", label=policy, color=colour(policy))
    label(axes, "20 models, 100 ms", "GPUs", "goodput, 1,000 r/s")
    axes.legend(fontsize=7)
    return drawing


def rows_13(results: Results) -> list[Row]:
    lines = [
        Row(
            f"scheduler alone, {number} threads, requests/s",
            f"{PAPER_PER_CORE * int(number):,}",
            f"{rate:,}",
        )
        for number, rate in results["by_threads"].items()
    ]
    first = results["by_threads"].get("1", 0)
    for number, rate in results["by_threads"].items():
        if int(number) > 1:
            times = ratio(rate, first)
            is_met = marked(is_met=times >= 0.9 * int(number))
            what = f"scheduler alone, {number} threads over one, times"
            lines.append(Row(what, number, f"{times:.2f}", mark=is_met))
    lines += [
        Row(f"one thread, {number} GPUs, requests/s", "no effect", f"{rate:,}")
        for number, rate in results["by_gpus"].items()
    ]
    for policy, rates in results["goodput_rps"].items():
        a_gpu = [rps / number for rps, number in zip(rates, results["gpus"], strict=True)]
        lines.append(
            Row(
                f"{policy}, goodput a GPU from {results['gpus'][0]} to {results['gpus'][-1]} GPUs",
                "linear",
                f"{a_gpu[0]:.0f} to {a_gpu[-1]:.0f} r/s",
            )
        )
    return lines


FIGURE_13 = Figure(
    "13",
    "Figure 13: scalability",
    measure_13,
    draw_13,
    rows_13,
    "ResNet models with targets of 100 ms. A thread is a process with models and GPUs of its own "
    "(section 4.4); the paper's threads are C++ on 32 cores of an EPYC 7502.",
)


def measure_14(work: Work, effort: Effort) -> Results:
    """Goodput by a network delay that the scheduler reckons with."""
    slos = effort.pick([25], [20, 25, 50, 100], [20, 25, 50, 100])
    rdma_us = effort.pick([33], [0, 33], [0, 10, 20, 33, 50])
    tcp_ms = effort.pick([5], [3, 12], [0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 36])
    delays_ms = [us / 1e3 for us in rdma_us] + [float(ms) for ms in tcp_ms]
    scenarios = []
    for slo in slos:
        models = tuple(copies(linear_model("resnet", 1.053, 5.072, float(slo)), 20))
        for delay_ms in delays_ms:
            delay_ns = round(delay_ms * MS_NS)
            scenarios.append(Scenario(models=models, num_gpus=32, delays=Delays(delay_ns)))
    rates = iter(value["rps"] for value in searches(work, effort, scenarios))
    return {
        "rdma_ms": delays_ms[: len(rdma_us)],
        "tcp_ms": delays_ms[len(rdma_us) :],
        "by_slo": {str(slo): [next(rates) for _ in delays_ms] for slo in slos},
    }


def draw_14(results: Results) -> Drawing:
    """Left microseconds, right milliseconds."""
    drawing = new_drawing()
    num_rdma = len(results["rdma_ms"])
    axes = drawing.add_subplot(1, 2, 1)
    for slo, rates in results["by_slo"].items():
        micros = [1e3 * ms for ms in results["rdma_ms"]]
        axes.plot(micros, [rps / 1e3 for rps in rates[:num_rdma]], "o-", label=f"{slo} ms")
    label(axes, "RDMA", "delay, us", "goodput, 1,000 r/s")
    axes.legend(fontsize=7)
    axes = drawing.add_subplot(1, 2, 2)
    for slo, rates in results["by_slo"].items():
        shown = [rps / 1e3 for rps in rates[num_rdma:]]
        axes.plot(results["tcp_ms"], shown, "o-", label=f"{slo} ms")
    label(axes, "TCP", "delay, ms", "goodput, 1,000 r/s")
    axes.legend(fontsize=7)
    return drawing


def rows_14(results: Results) -> list[Row]:
    lines = []
    delays_ms = results["rdma_ms"] + results["tcp_ms"]
    for slo, rates in results["by_slo"].items():
        for index in (len(results["rdma_ms"]) - 1, *range(len(results["rdma_ms"]), len(rates))):
            lost = 100 * (1 - ratio(rates[index], rates[0]))
            is_rdma = index < len(results["rdma_ms"])
            lines.append(
                Row(
                    f"target {slo} ms, delay {delays_ms[index]:g} ms: goodput lost",
                    "marginal" if is_rdma else "up to 70%",
                    f"{lost:.1f}%",
                )
            )
    return lines


FIGURE_14 = Figure(
    "14",
    "Figure 14: network delay",
    measure_14,
    draw_14,
    rows_14,
    "20 models (1.053, 5.072) on 32 GPUs. The delay is what the scheduler reckons with, the tail "
    "of the network; every dispatch takes that long.",
)
