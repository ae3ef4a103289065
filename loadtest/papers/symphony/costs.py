"""Figures 2, 4 and 6: what sharing a GPU, computing again, swapping and migrating cost."""

from dataclasses import asdict

from matplotlib.figure import Figure as Drawing

from loadtest.cluster.measured import PCIE_BYTES_PER_S
from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.plant import build_plant
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.symphony.runs import NAMES
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import (
    draw_sweep,
    how,
    row_of_ratio,
    rows_of_values,
    series,
    sweep,
)
from loadtest.plots import doubling_x, log_y
from shared.profiles import LatencyProfile, load_profile

CONCURRENT = [1, 2, 4, 8, 16, 32, 64, 128]
HISTORY = [512, 1024, 2048, 4096, 8192, 16384, 32768]
SESSION_TOKENS, ANSWER_TOKENS = 2200, 650  # the paper's mean session, our mean answer


def measure_profile(work: Work, effort: Effort) -> Results:
    """TPOT by turns on one GPU, and ms until a history is there, by how."""
    asked = ClusterOptions()
    profile = load_profile(asked.profile)
    plant = build_plant(asked)
    return {
        "profile": asdict(profile),
        "decode_ms": [tpot_ms(profile, each, 0) for each in CONCURRENT],
        "with_prompts_ms": [tpot_ms(profile, each, SESSION_TOKENS) for each in CONCURRENT],
        "recompute_ms": [profile.step_ms(each, 0) for each in HISTORY],
        "swap_ms": [_copy_ms(profile, each, PCIE_BYTES_PER_S) for each in HISTORY],
        "migrate_ms": [
            _copy_ms(profile, each, plant.peer_bytes_per_s)
            + _copy_ms(profile, each, PCIE_BYTES_PER_S)
            for each in HISTORY
        ],
    }


def tpot_ms(profile: LatencyProfile, num_turns: int, num_prompt: int) -> float:
    """Of a GPU on which so many turns decode, each of `SESSION_TOKENS`; each brings a prompt of so
    many tokens to compute once every `ANSWER_TOKENS` tokens."""
    decode_ms = profile.step_ms(0, num_turns, num_turns * SESSION_TOKENS)
    return decode_ms + profile.prefill_ms_per_token * num_prompt * num_turns / ANSWER_TOKENS


def _copy_ms(profile: LatencyProfile, num_tokens: int, bytes_per_s: float) -> float:
    return num_tokens * profile.kv_bytes_per_token / bytes_per_s * 1e3


def draw_concurrency(results: Results) -> Drawing:
    """TPOT by turns on a GPU."""
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    axes.plot(CONCURRENT, results["decode_ms"], ".-", label="decoding alone")
    axes.plot(CONCURRENT, results["with_prompts_ms"], ".-", label="and computing all prompts")
    doubling_x(axes)
    axes.set_ylim(bottom=0)
    label(axes, results["profile"]["name"], "turns on a GPU", "TPOT, ms")
    axes.legend(fontsize=7)
    return drawing


def rows_of_concurrency(results: Results) -> list[Row]:
    few, many = CONCURRENT.index(8), CONCURRENT.index(32)
    source = f"simulated: by the profile {results['profile']['name']}"
    return [
        Row(
            f"TPOT of 32 turns over that of 8, {name}",
            paper,
            f"{results[key][many] / results[key][few]:.2f}",
            source,
        )
        for name, key, paper in (
            ("decoding alone", "decode_ms", "almost 2"),
            ("and computing all prompts", "with_prompts_ms", "almost 2"),
        )
    ]


def draw_ways(results: Results) -> Drawing:
    """Until a history is there."""
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    for key, name in (("recompute_ms", "compute"), ("swap_ms", "from host memory"),
                      ("migrate_ms", "from another host")):  # fmt: skip
        axes.plot(HISTORY, results[key], ".-", label=name)
    doubling_x(axes)
    log_y(axes)
    label(axes, results["profile"]["name"], "tokens of history", "ms")
    axes.legend(fontsize=7)
    return drawing


def rows_of_ways(results: Results) -> list[Row]:
    source = f"simulated: by the profile {results['profile']['name']}"
    at = HISTORY.index(2048)
    recompute = results["recompute_ms"][at]
    new_ms = results["profile"]["base_ms"] + results["profile"]["prefill_ms_per_token"] * 32
    with_ms, without_ms = (
        results[key][CONCURRENT.index(32)] for key in ("with_prompts_ms", "decode_ms")
    )
    return [
        Row(
            "2,048 tokens: computing over loading and computing 32 new ones",
            "4.9 (prefill, LLaMA-7B)",
            f"{ratio(recompute, results['swap_ms'][at] + new_ms):.1f}",
            source,
        ),
        Row(
            "TPOT of 32 turns: with prompts computed over without",
            "1.68 (decode, LLaMA-7B)",
            f"{with_ms / without_ms:.2f}",
            source,
        ),
        Row(
            "2,048 tokens: compute / from host memory / from another host, ms",
            "",
            f"{recompute:.0f} / {results['swap_ms'][at]:.0f} / {results['migrate_ms'][at]:.0f}",
            source,
        ),
    ]


def measure_distributed(work: Work, effort: Effort) -> Results:
    """Computing again, swapping, and swapping with migration, on all GPUs."""
    users = effort.pick([64], [256], [128, 256, 384])
    return sweep(work, effort, ["recompute", "sticky", "migrate-sticky", "symphony"], users)


def draw_distributed(results: Results) -> Drawing:
    """Time of a turn, by users."""
    return draw_sweep(results, ["normalized_ms"])


@unless_skipped
def rows_of_distributed(results: Results) -> list[Row]:
    last = {system: series(results, system, "normalized_ms")[-1] for system in results["runs"]}
    source = how(results)
    rows = [
        Row(
            f"{NAMES[system]} over {NAMES['recompute']}, time of a turn at most users",
            "above 1",
            f"{ratio(last[system], last['recompute']):.2f}",
            source,
        )
        for system in ("sticky", "migrate-sticky")
    ]
    return [
        *rows,
        row_of_ratio(results, "normalized_ms", "recompute", ""),
        *rows_of_values(results, ["normalized_ms"]),
    ]


FIGURE_2 = Figure(
    "2",
    "Figure 2: TPOT by turns on a GPU",
    measure_profile,
    draw_concurrency,
    rows_of_concurrency,
    "By the latency profile: sessions of 2,200 tokens, as the paper's mean, and answers of 650, "
    "ours. The paper's is measured.",
)
FIGURE_4 = Figure(
    "4",
    "Figure 4: computing again against loading",
    measure_profile,
    draw_ways,
    rows_of_ways,
    "By the latency profile, the PCIe of an A100 and what one kvstore takes from another, unused "
    "by others. The paper's numbers are of LLaMA-7B, whose KV is four times as large.",
)
FIGURE_6 = Figure(
    "6",
    "Figure 6: computing again, swapping and migrating on all GPUs",
    measure_distributed,
    draw_distributed,
    rows_of_distributed,
    "The paper finds that computing again is best of the three on 8 GPUs, though it wastes most: "
    "swapping makes sessions stick, and migrating waits for the link. The load is that of Figure "
    "11, beyond what host memory holds.",
)
