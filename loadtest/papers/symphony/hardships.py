"""Figures 18 to 21: prompts alone, hints that are missing or wrong, and urgent sessions."""

from typing import Any

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.symphony.runs import COLOURS, LLAMA_13B, NAMES, SYSTEMS, options, run_all
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import (
    METRICS,
    draw_sweep,
    how,
    row_of_ratio,
    rows_of_values,
    sweep,
)
from loadtest.sim.timeline import SECOND

MISSED = [0.0, 0.1, 0.25, 0.5, 1.0]
SPURIOUS = [0.0, 0.2, 0.4, 0.6, 1.0]
URGENT = [0.1, 0.3, 0.5]
USERS = 1024


def measure_prefill(work: Work, effort: Effort) -> Results:
    """Prompts of 1,024 tokens, answers of one."""
    users = effort.pick([64], [512, 1024], [256, 512, 1024])
    policies = ["symphony", "sticky", "migrate-sticky", "recompute"]
    return sweep(work, effort, policies, users, trace="prefill-busy")


def draw_prefill(results: Results) -> Drawing:
    """TTFT and throughput by users."""
    return draw_sweep(results, ["ttft_ms", "requests_per_s"])


@unless_skipped
def rows_prefill(results: Results) -> list[Row]:
    return [
        row_of_ratio(results, "ttft_ms", "sticky", "better"),
        row_of_ratio(results, "ttft_ms", "migrate-sticky", "better"),
        row_of_ratio(results, "requests_per_s", "sticky", "better"),
        *rows_of_values(results, ["ttft_ms", "requests_per_s", "load_max_over_median"]),
    ]


def _by_share(
    work: Work, effort: Effort, option: str, shares: list[float], beside: str = "", **changes: Any
) -> Results:
    """``{"shares", "runs": [summary by share], "beside": summary or None}``."""
    users = effort.pick(64, USERS, USERS)
    asked = [options(effort, users=users, **{option: each}, **changes) for each in shares]
    if beside:
        asked.append(options(effort, users=users, **SYSTEMS[beside], **changes))
    found = run_all(work, asked)
    if skipped := [each["skipped"] for each in found if "skipped" in each]:
        return {"skipped": skipped[0]}
    first = asked[0]
    return {
        "shares": shares,
        "users": users,
        "gpus": first.gpus,
        "trace": first.trace,
        "profile": first.profile,
        "seconds": first.duration_ns // SECOND,
        "warm_s": first.warm_ns // SECOND,
        "runs": found[: len(shares)],
        "beside": found[-1] if beside else None,
    }


def measure_missed(work: Work, effort: Effort) -> Results:
    """By the share of hints that are never sent; beside them InferCept."""
    return _by_share(work, effort, "missed", effort.pick([0.0, 0.1], MISSED, MISSED), "sticky")


def measure_spurious(work: Work, effort: Effort) -> Results:
    """By hints without a turn, for each turn; the larger model, as in the paper."""
    shares = effort.pick([0.0, 0.6], SPURIOUS, SPURIOUS)
    return _by_share(work, effort, "spurious", shares, profile=LLAMA_13B)


def _draw_shares(results: Results, metric: str, x: str) -> Drawing:
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    percents = [100 * each for each in results.get("shares", [])]
    values = [each[metric] for each in results.get("runs", [])]
    axes.plot(percents or [0], values or [0], ".-", color=COLOURS["symphony"], label="symphony")
    if beside := results.get("beside"):
        axes.axhline(beside[metric], ls="--", lw=0.8, color=COLOURS["sticky"], label="sticky")
    axes.set_ylim(bottom=0)
    label(axes, results.get("profile", "no data"), x, METRICS[metric])
    axes.legend(fontsize=7)
    return drawing


def draw_missed(results: Results) -> Drawing:
    """Time of a turn by token."""
    return _draw_shares(results, "normalized_ms", "hints missed, %")


def draw_spurious(results: Results) -> Drawing:
    """Throughput."""
    return _draw_shares(results, "requests_per_s", "spurious hints for 100 turns")


@unless_skipped
def rows_missed(results: Results) -> list[Row]:
    none, beside = results["runs"][0]["normalized_ms"], results["beside"]["normalized_ms"]
    paper = {0.1: "6 (4.5); 14.6 (21.3 to 24.4 ms, same place and Figure 19)"}
    lines = [
        Row(
            f"{share:.0%} of hints missed: more ms a token, %",
            paper.get(share, ""),
            f"{100 * (ratio(each['normalized_ms'], none) - 1):.1f} "
            f"({none:.2f} to {each['normalized_ms']:.2f} ms)",
            how(results),
        )
        for share, each in zip(results["shares"], results["runs"], strict=True)
        if share
    ]
    last = results["runs"][-1]["normalized_ms"]
    return [
        *lines,
        Row(
            f"{results['shares'][-1]:.0%} missed, ms a token over {NAMES['sticky']}",
            "1 (at 100%)",
            f"{ratio(last, beside):.2f}",
            how(results),
        ),
        *_prefetches(results, "missed"),
    ]


@unless_skipped
def rows_spurious(results: Results) -> list[Row]:
    none = results["runs"][0]["requests_per_s"]
    return [
        *(
            Row(
                f"{share:.0%} spurious hints: less throughput, %",
                "2.1" if share == 0.6 else "",
                f"{100 * (1 - ratio(each['requests_per_s'], none)):.1f} "
                f"({none:.2f} to {each['requests_per_s']:.2f} a second)",
                how(results),
            )
            for share, each in zip(results["shares"], results["runs"], strict=True)
            if share
        ),
        *_prefetches(results, "spurious"),
    ]


def _prefetches(results: Results, word: str) -> list[Row]:
    return [
        Row(
            f"{share:.0%} {word}: TTFT, ms, mean / p99",
            "",
            f"{each['ttft_ms']:.1f} / {each['ttft_p99_ms']:.1f}",
            how(results),
        )
        for share, each in zip(results["shares"], results["runs"], strict=True)
    ]


def measure_urgent(work: Work, effort: Effort) -> Results:
    """By the share of urgent sessions, ours and vLLM's."""
    shares = effort.pick([0.3], URGENT, URGENT)
    results = _by_share(work, effort, "priority_share", shares)
    if "skipped" not in results:
        theirs = _by_share(work, effort, "priority_share", shares, **SYSTEMS["recompute"])
        results = results | {"recompute": theirs["runs"]}
    return results


def _tpot(run: Results, who: str) -> float:
    found: float = run["by_priority"].get(who, {}).get("tpot_ms", 0.0)
    return found


def draw_urgent(results: Results) -> Drawing:
    """TPOT of urgent sessions and of the others."""
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    for key, policy in (("runs", "symphony"), ("recompute", "recompute")):
        for who, style in (("urgent", "o-"), ("other", "s--")):
            values = [_tpot(each, who) for each in results.get(key, [])]
            axes.plot(
                [100 * each for each in results.get("shares", [])] or [0],
                values or [0],
                style,
                markersize=4,
                color=COLOURS[policy],
                label=f"{policy}, {who}",
            )
    axes.set_ylim(bottom=0)
    label(axes, results.get("profile", "no data"), "urgent sessions, %", METRICS["tpot_ms"])
    axes.legend(fontsize=7)
    return drawing


@unless_skipped
def rows_urgent(results: Results) -> list[Row]:
    return [
        Row(
            f"{share:.0%} urgent: TPOT of {who} sessions, recompute / ours, ms",
            "ours better",
            f"{_tpot(theirs, who):.2f} / {_tpot(ours, who):.2f} "
            f"({ratio(_tpot(theirs, who), _tpot(ours, who)):.2f})",
            how(results),
        )
        for share, ours, theirs in zip(
            results["shares"], results["runs"], results["recompute"], strict=True
        )
        for who in ("urgent", "other")
    ]


FIGURE_18 = Figure(
    "18",
    "Figure 18: prompts alone",
    measure_prefill,
    draw_prefill,
    rows_prefill,
    "Every turn has 1,024 new tokens and an answer of one (`prefill-busy`), so that there is no "
    "TPOT; the paper gives no numbers in its text.",
)
FIGURE_19 = Figure(
    "19",
    "Figure 19: hints that are missed",
    measure_missed,
    draw_missed,
    rows_missed,
    "Milliseconds of a whole turn by its output tokens. The paper's 10% cost 3.1 of 21.3 ms, which "
    "is 14.6%, and which its text calls 6%.",
)
FIGURE_20 = Figure(
    "20",
    "Figure 20: hints without a turn",
    measure_spurious,
    draw_spurious,
    rows_spurious,
    "A user begins to type and does not send: a hint for a session that was here before, and no "
    "turn. LLaMA-2 13B, as in the paper's text.",
)
FIGURE_21 = Figure(
    "21",
    "Figure 21: urgent sessions",
    measure_urgent,
    draw_urgent,
    rows_urgent,
    "Some sessions are urgent. vLLM's own order of priority is taken to be that of our workers.",
)
