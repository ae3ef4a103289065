"""Figures 11 to 14: ours beside other systems, by users."""

from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
from matplotlib.figure import Figure as Drawing

from loadtest.cluster.options import ClusterOptions
from loadtest.papers.base import Effort, Figure, Results, Row, Work, ratio
from loadtest.papers.symphony.runs import LLAMA_13B, NAMES, READING_WARM_NS
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import (
    draw_sweep,
    how,
    row_of_ratio,
    rows_of_values,
    series,
    sweep,
    users_at,
)
from shared.profiles import load_profile

COMPARED = ["symphony", "recompute", "prefix-cache", "sticky", "migrate", "migrate-sticky"]
FEW = ["symphony", "recompute", "sticky"]
SHOWN = ["tpot_ms", "ttft_ms", "requests_per_s"]
LIKE = 20.5 / 18.5  # Figure 11's "similar" TPOT: 18.5 ms of vLLM's 64 users, 20.5 of ours
BURST = "burstgpt-10x"
INT8_SHARE = 2  # of a token's bytes, int8 has one in so many


def measure_8b(work: Work, effort: Effort) -> Results:
    """All systems, LLaMA-3.1 8B; in a full run also people who read, eight times as many."""
    results = sweep(work, effort, COMPARED, effort.pick([64], [256, 1024], [64, 256, 512, 1024]))
    if effort.level == "full" and "skipped" not in results:
        results["reading"] = sweep(
            work, effort, FEW, [6144],
            trace="sharegpt-like", warm_ns=READING_WARM_NS,
        )  # fmt: skip
    return results


def measure_13b(work: Work, effort: Effort) -> Results:
    """All systems, LLaMA-2 13B, whose KV is six times as large."""
    users = effort.pick([64], [256], [64, 256, 512])
    return sweep(work, effort, COMPARED, users, profile=LLAMA_13B)


def measure_burst(work: Work, effort: Effort) -> Results:
    """Ours, vLLM and InferCept on BurstGPT's sessions."""
    users = effort.pick([64], [1024, 4096], [1024, 2048, 4096])
    return sweep(work, effort, FEW, users, trace=BURST)


def draw(results: Results) -> Drawing:
    """TPOT, TTFT and throughput by users."""
    return draw_sweep(results, SHOWN)


@unless_skipped
def rows_8b(results: Results) -> list[Row]:
    rows = [
        row_of_ratio(results, "tpot_ms", "recompute", "1.4 to 1.9"),
        row_of_ratio(results, "tpot_ms", "prefix-cache", ""),
        row_of_ratio(results, "tpot_ms", "sticky", "up to 2.5"),
        row_of_ratio(results, "tpot_ms", "migrate", "up to 1.8"),
        row_of_ratio(results, "tpot_ms", "migrate-sticky", "up to 1.6"),
        row_of_ratio(results, "ttft_ms", "recompute", "up to 2.4"),
        row_of_ratio(results, "ttft_ms", "sticky", "up to 2.4"),
        row_of_ratio(results, "ttft_ms", "migrate", "up to 2.4"),
        row_of_ratio(results, "requests_per_s", "sticky", "4.2 at 1,024 users"),
        row_of_ratio(results, "requests_per_s", "migrate-sticky", "1.9 at 1,024 users"),
        _row_of_users(results),
        *rows_of_values(results, SHOWN),
    ]
    if "runs" in results.get("reading", {}):
        reading = results["reading"]
        rows += [
            row_of_ratio(reading, "tpot_ms", "recompute", ""),
            row_of_ratio(reading, "ttft_ms", "recompute", ""),
            row_of_ratio(reading, "tpot_ms", "sticky", ""),
        ]
        rows[-3:] = [row._replace(what=f"people who read: {row.what}") for row in rows[-3:]]
    return rows


def _row_of_users(results: Results) -> Row:
    """By how many times more users ours serves at the TPOT that vLLM has with the fewest."""
    most_ms = series(results, "recompute", "tpot_ms")[0] * LIKE
    ours = users_at(results, "symphony", most_ms)
    theirs = users_at(results, "recompute", most_ms)
    is_end = ours == results["users"][-1]
    return Row(
        f"users at a TPOT of {most_ms:.1f} ms, ours over recompute's",
        "4 (64 to 256 users, 18.5 to 20.5 ms: Figure 11); 8 (64 to 512: section 4.2); "
        "4 at 1.3% more latency (abstract)",
        f"{'at least ' * is_end}{ratio(ours, theirs):.1f} ({theirs:.0f} to {ours:.0f})",
        how(results),
    )


@unless_skipped
def rows_13b(results: Results) -> list[Row]:
    return [
        row_of_ratio(results, "tpot_ms", "recompute", "1.31 to 1.9 (4.2); up to 2.6 (Figure 12)"),
        row_of_ratio(results, "tpot_ms", "sticky", "up to 2.6 (Figure 12)"),
        row_of_ratio(results, "ttft_ms", "recompute", "2.4 (4.2); 2.56 (Figure 12)"),
        row_of_ratio(results, "ttft_ms", "sticky", "2.4 (4.2); 2.56 (Figure 12)"),
        row_of_ratio(results, "tpot_ms", "migrate", ""),
        row_of_ratio(results, "tpot_ms", "migrate-sticky", ""),
        *rows_of_values(results, SHOWN),
    ]


@unless_skipped
def rows_burst(results: Results) -> list[Row]:
    return [
        row_of_ratio(results, "tpot_ms", "recompute", "up to 2.5"),
        row_of_ratio(results, "tpot_ms", "sticky", "up to 2.5"),
        row_of_ratio(results, "ttft_ms", "recompute", ""),
        *rows_of_values(results, SHOWN),
    ]


def measure_remote(work: Work, effort: Effort) -> Results:
    """LMCache with its compression, ours without and with it."""
    users = effort.pick([64], [1024], [256, 512, 1024])
    plain = load_profile(ClusterOptions().profile)
    packed = replace(
        plain,
        name=f"{plain.name}-int8-below",
        kv_bytes_per_token=plain.kv_bytes_per_token // INT8_SHARE,
    )
    with TemporaryDirectory(prefix="symphony-figures-") as folder:
        path = Path(folder) / "packed.json"
        path.write_bytes(orjson.dumps(asdict(packed)))
        below = sweep(work, effort, ["symphony", "remote"], users, profile=str(path))
    results = sweep(work, effort, ["symphony"], users)
    if "skipped" not in results:
        results["runs"]["remote"] = below["runs"]["remote"]
        results["runs"]["symphony, int8 below"] = below["runs"]["symphony"]
    return results


def draw_remote(results: Results) -> Drawing:
    """Time of a turn and TTFT, by users."""
    return draw_sweep(results, ["normalized_ms", "ttft_ms"])


@unless_skipped
def rows_remote(results: Results) -> list[Row]:
    rows = []
    for ours, paper in (("symphony", "35"), ("symphony, int8 below", "47")):
        gains = [
            100 * (1 - ratio(mine, other))
            for mine, other in zip(
                series(results, ours, "normalized_ms"),
                series(results, "remote", "normalized_ms"),
                strict=True,
            )
        ]
        what = f"time of a turn, {ours}, less than {NAMES['remote']}, %"
        rows.append(Row(what, f"up to {paper}", f"{max(gains):.1f}", how(results)))
    return [*rows, *rows_of_values(results, ["normalized_ms", "ttft_ms"])]


FIGURE_11 = Figure(
    "11",
    "Figure 11: all systems, LLaMA-3.1 8B",
    measure_8b,
    draw,
    rows_8b,
    "Each system is a placement policy of the production scheduler, without what that system has "
    "not: `recompute` keeps no KV between turns, `prefix-cache` what happens to stay in the pool, "
    "`sticky` keeps it in host memory alone and does not move sessions, `migrate` moves them and "
    "keeps nothing, `migrate-sticky` both. None of these acts on hints. Users only type "
    "(`sharegpt-busy`), so that the paper's numbers of users load GPUs as its own do.",
)
FIGURE_12 = Figure(
    "12",
    "Figure 12: all systems, LLaMA-2 13B",
    measure_13b,
    draw,
    rows_13b,
    "As Figure 11. This model has every head's keys and values, so its GPUs hold 55,000 tokens.",
)
FIGURE_13 = Figure(
    "13",
    "Figure 13: BurstGPT",
    measure_burst,
    draw,
    rows_burst,
    "Real sessions, their pauses made a tenth as long (`burstgpt-10x`): at their real ones, a "
    "thousand users make some two requests a second.",
)
FIGURE_14 = Figure(
    "14",
    "Figure 14: LMCache, and compression below",
    measure_remote,
    draw_remote,
    rows_remote,
    "`remote` loads KV when its turn is there, at half its size. What unpacking costs the GPU is "
    "not simulated, of which the paper says that it slows others. Ours with compression has KV of "
    "half the size everywhere but on GPUs.",
)
