"""Figure 13: how many of 16 GPUs are busy while the load goes up and down."""

from functools import partial
from itertools import pairwise
from math import ceil
from statistics import mean, median
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, marked, new_drawing
from loadtest.papers.llm_servers import (
    SECOND,
    Batch,
    LlmServers,
    Request,
    Sample,
    Shape,
    requests_at,
)
from loadtest.papers.punica.profiles import LENGTHS, LLAMA_7B, SEATS, STEPS_7B, lengths
from loadtest.policies.consolidate import Consolidate
from loadtest.policies.placement import SYSTEMS
from loadtest.workloads.traces import path_of
from shared.blocks import BLOCK_TOKENS

NUM_GPUS = 16
NUM_ADAPTERS = 64
SKEW = 1.5  # requests to an adapter over those to the next popular one
POLICIES = ("consolidate", "consolidate, nothing moves", "cost", "most-idle")
PEAK_SHARE = 0.9  # of what all GPUs can do
HOUR_S = 3600.0
SAMPLE_NS = SECOND
POINTS_MAX = 80  # drawn of what is kept, so that the picture is small
LINK_BYTES_PER_S = 11.75e9  # of 100 Gbit/s
BLOCK_BYTES = 2 * 2 * 4096 * 32 * BLOCK_TOKENS  # keys and values of 32 layers in 16 bits
SHAPE = Shape(
    SEATS,
    prompts_max=1,
    num_blocks=LLAMA_7B.num_kv_tokens // BLOCK_TOKENS,
    block_ms=1e3 * BLOCK_BYTES / LINK_BYTES_PER_S,
)
COLOURS = {
    "consolidate": "#c0392b",
    "consolidate, nothing moves": "#7d3c98",
    "cost": "#e08e45",
    "most-idle": "#2e86c1",
}


class Unmoved(Consolidate):
    """Running turns stay where they are."""

    moves_turns: ClassVar[bool] = False


def measure(work: Work, effort: Effort) -> Results:
    """``{"rate", "seconds", "policies": {policy: see `_run`}}``."""
    if not path_of(LENGTHS).is_file():
        return {"skipped": f"not here: {path_of(LENGTHS)}"}
    seconds = effort.pick(60.0, HOUR_S / 4, HOUR_S)
    policies = effort.pick(POLICIES[:1], POLICIES, POLICIES)
    found = work.map(partial(_run, seconds), policies)
    return {
        "rate": round(peak_rate(), 1),
        "seconds": seconds,
        "policies": dict(zip(policies, found, strict=True)),
    }


def peak_rate() -> float:
    """Requests a second that keep `PEAK_SHARE` of all GPUs busy."""
    drawn = lengths()
    num_prompt, num_output = (mean(each) for each in zip(*drawn, strict=True))
    num_context = int(SEATS * (num_prompt + num_output / 2))
    turns = [Request(0, adapter, 0, 0) for adapter in STEPS_7B.adapters(SEATS)]
    step_ms = STEPS_7B.step_ms(Batch(turns, num_context, 0))
    reply_ms = num_output * step_ms / SEATS + num_prompt * LLAMA_7B.prefill_ms_per_token
    return float(PEAK_SHARE * NUM_GPUS * 1e3 / reply_ms)


def up_and_down(peak: float, seconds: float, rng: np.random.Generator) -> list[int]:
    """Instants of arrivals, of exponential gaps, whose rate goes from 0 to `peak` and back."""
    num = rng.poisson(peak * seconds / 2)
    at_s = np.sort(rng.triangular(0.0, seconds / 2, seconds, num))
    at_ns: list[int] = (at_s * SECOND).astype(np.int64).tolist()
    return at_ns


def _run(seconds: float, policy: str) -> Results:
    """What one policy does.

    Returns:
        ``near_need``: share of instants at which as many GPUs are busy as full batches would take,
        or one more or less; ``batch``: median of busy GPUs; and by time, ``busy``, ``need``,
        ``tokens_per_s`` and the batch of each GPU, ``sizes``.
    """
    rng = np.random.default_rng(13)
    shares = SKEW ** -np.arange(NUM_ADAPTERS, dtype=np.float64)
    arrivals = up_and_down(peak_rate(), seconds, rng)
    adapters = STEPS_7B.adapters(NUM_ADAPTERS)
    requests = requests_at(arrivals, adapters, shares / shares.sum(), lengths(), rng)
    make = SYSTEMS[policy].make if policy in SYSTEMS else Unmoved
    servers = LlmServers(make, STEPS_7B, NUM_GPUS, requests, shape=SHAPE, sample_ns=SAMPLE_NS)
    servers.run()
    samples = [each for each in servers.samples if each.at_ns < seconds * SECOND]
    busy = [sum(size > 0 for size in each.sizes) for each in samples]
    need = [min(ceil(each.num_turns / SEATS), NUM_GPUS) for each in samples]
    near = [abs(has - wants) <= 1 for has, wants in zip(busy, need, strict=True)]
    every = max(len(samples) // 240, 1)
    return {
        "near_need": round(mean(near), 4),
        "mean_over_need": round(mean(busy) / mean(need), 3),
        "batch": median(size for each in samples for size in each.sizes if size),
        "peak_tokens_per_s": round(max(_tokens_per_s(samples, 60))),
        "num_restarts": servers.num_restarts,
        "num_refused": servers.num_refused,
        "num_moved": len(servers.gaps),
        "gap_steps": round(median([gap / step for gap, step in servers.gaps] or [0.0]), 2),
        "gap_ms": round(median([gap / 1e6 for gap, _ in servers.gaps] or [0.0]), 1),
        "at_s": [each.at_ns // SECOND for each in samples[::every]],
        "busy": busy[::every],
        "need": need[::every],
        "sizes": [each.sizes for each in samples[::every]],
        "tokens_per_s": [round(each) for each in _tokens_per_s(samples, every)],
    }


def _tokens_per_s(samples: list[Sample], every: int) -> list[float]:
    """Made between samples that are so many apart."""
    some = samples[::every]
    rates = [
        (b.num_tokens - a.num_tokens) * SECOND / (b.at_ns - a.at_ns) for a, b in pairwise(some)
    ]
    return rates or [0.0]


def draw(results: Results) -> Drawing:
    """Above busy GPUs by policy, and tokens a second; below each GPU's batch."""
    drawing = new_drawing(2, 2)
    if "skipped" in results:
        return drawing
    busy, tokens = drawing.add_subplot(2, 2, 1), drawing.add_subplot(2, 2, 2)
    for policy, found in results["policies"].items():
        minutes = _thinned(found["at_s"]) / 60
        style = {"lw": 0.9, "color": COLOURS[policy], "label": policy}
        busy.plot(minutes, _thinned(found["busy"]), **style)
        rates = _thinned(found["tokens_per_s"])
        tokens.plot(minutes[: len(rates)], rates, **style)
    first = next(iter(results["policies"].values()))
    minutes = _thinned(first["at_s"]) / 60
    busy.plot(minutes, _thinned(first["need"]), lw=0.8, ls="--", color="k", label="needed")
    label(busy, "busy GPUs", "minutes", "GPUs")
    label(tokens, "text generation", "minutes", "tokens/s")
    busy.legend(fontsize=7)
    shown = [each for each in ("consolidate", "most-idle") if each in results["policies"]]
    for number, policy in enumerate(shown):
        axes = drawing.add_subplot(2, 2, 3 + number)
        sizes = _thinned(results["policies"][policy]["sizes"]).T
        last = results["policies"][policy]["at_s"][-1] / 60
        axes.imshow(sizes, aspect="auto", cmap="Blues", extent=(0, last, NUM_GPUS, 0), vmax=SEATS)
        label(axes, f"batches, {policy}", "minutes", "GPU")
        axes.grid(visible=False)
    return drawing


def _thinned(values: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Every so many of these, by time, that at most `POINTS_MAX` are left."""
    return np.array(values[:: ceil(len(values) / POINTS_MAX) or 1])


def rows(results: Results) -> list[Row]:
    if "skipped" in results:
        return [Row(results["skipped"], "", "", "not measured")]
    minutes = results["seconds"] / 60
    how = f"simulated: {NUM_GPUS} GPUs, {minutes:g} minutes, up to {results['rate']:g} requests/s"
    lines = []
    for policy, found in results["policies"].items():
        is_ours = policy.startswith("consolidate")
        near, batch = found["near_need"], found["batch"]
        lines += [
            Row(
                f"{policy}: busy GPUs within one of need, % of the time (aim: 95)",
                "consolidates" if is_ours else "",
                f"{100 * near:.1f} ({found['mean_over_need']:.2f} of need in the mean)",
                how,
                mark=marked(is_met=near >= 0.95) if is_ours else "",
            ),
            Row(
                f"{policy}: median batch of busy GPUs (aim: 29 of {SEATS})",
                "usually the maximum" if is_ours else "",
                f"{batch:g}",
                how,
                mark=marked(is_met=batch >= 0.9 * SEATS) if is_ours else "",
            ),
            Row(
                f"{policy}: tokens/s of the busiest minute",
                "",
                f"{found['peak_tokens_per_s']}",
                how,
            ),
            Row(
                f"{policy}: turns that moved",
                "",
                f"{found['num_moved']}",
                how,
            ),
            Row(
                f"{policy}: turns computed again for want of pages",
                "",
                f"{found['num_restarts']}",
                how,
            ),
        ]
        if found["num_moved"]:
            steps = found["gap_steps"]
            lines.append(
                Row(
                    f"{policy}: gap in the stream of one that moves, p50, in steps (aim: 2)",
                    "its KV is computed again",
                    f"{steps} ({found['gap_ms']} ms)",
                    how,
                    mark=marked(is_met=steps <= 2),
                )
            )
    return lines


FIGURE_13 = Figure(
    "13",
    "Figure 13: a cluster's load, up and down",
    measure,
    draw,
    rows,
    f"The production scheduler's core over {NUM_GPUS} simulated A100 of 40 GB with 7B (the profile "
    f"`{LLAMA_7B.name}`, from the paper's Figure 1), at most {SEATS} turns in a step and one "
    "prompt that begins. Lengths of ShareGPT's requests, Poisson arrivals whose rate goes evenly "
    "from 0 to what keeps 90% of the GPUs busy and back (the paper does not print its own), "
    "adapters each 1.5 times as popular as the next; an hour, a quarter of one in a quick run. "
    "`consolidate` is the paper's section 5.1, its queue in the scheduler; turns leave GPUs with "
    "half of their seats or less taken for fuller ones, and GPUs without pages, once their KV is "
    "there, over 100 Gbit/s; beside it the same where running turns stay. Needed are as many GPUs "
    "as "
    "full batches of all turns that are there.",
)
