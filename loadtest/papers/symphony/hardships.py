"""Figures 19 to 21: hints that are missing or wrong, and urgent sessions."""

from typing import Any

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.symphony.evidence import mark, shares_text, verdict
from loadtest.papers.symphony.runs import (
    CHATS,
    COLOURS,
    LLAMA_13B,
    NAMES,
    SYSTEMS,
    options,
    run_all,
)
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import METRICS, how
from loadtest.sim.timeline import SECOND

MISSED = [0.0, 0.1, 0.5, 1.0]
SPURIOUS = [0.0, 0.6, 1.0]
URGENT = [0.1, 0.3, 0.5]
USERS = 256  # of documents: more than host memory holds
USERS_13B = 1024  # as in the paper


def _by_share(
    work: Work,
    effort: Effort,
    option: str,
    shares: list[float],
    beside: str = "",
    most: int = USERS,
    **changes: Any,
) -> Results:
    """``{"shares", "runs": [summary by share], "beside": summary or None}``."""
    users = effort.pick(64, most, most)
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
        "beside_name": beside,
    }


def measure_missed(work: Work, effort: Effort) -> Results:
    """By the share of hints that are never sent; beside them InferCept."""
    shares = effort.pick([0.0, 0.1], MISSED, MISSED)
    return _by_share(work, effort, "missed", shares, "sticky")


def measure_spurious(work: Work, effort: Effort) -> Results:
    """By hints without a turn, for each turn; the larger model, as in the paper."""
    shares = effort.pick([0.0, 0.6], SPURIOUS, SPURIOUS)
    return _by_share(
        work, effort, "spurious", shares, "no hints",
        most=USERS_13B, profile=LLAMA_13B, trace=CHATS,
    )  # fmt: skip


def _draw_shares(results: Results, metric: str, x: str) -> Drawing:
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    percents = [100 * each for each in results.get("shares", [])]
    values = [each[metric] for each in results.get("runs", [])]
    axes.plot(percents or [0], values or [0], ".-", color=COLOURS["symphony"], label="symphony")
    if beside := results.get("beside"):
        axes.axhline(
            beside[metric],
            ls="--",
            lw=0.8,
            color=COLOURS[results["beside_name"]],
            label=results["beside_name"],
        )
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


def row_of_load(results: Results) -> Row:
    """Whether there is history at stake."""
    found = verdict(results["runs"])
    return Row("what this load is about", "KV beyond GPUs", found, how(results))


def _rows_by_share(
    results: Results, word: str, metric: str, paper: dict[float, str], most: float
) -> list[Row]:
    """By how many percent a metric is worse than without any, against what the paper has at most;
    and TTFT of all."""
    runs, text = results["runs"], METRICS[metric]
    none = runs[0][metric]
    sign = -1 if metric == "requests_per_s" else 1
    lines = [row_of_load(results)]
    for share, run in zip(results["shares"][1:], runs[1:], strict=True):
        worse = 100 * sign * (ratio(run[metric], none) - 1)
        lines.append(
            Row(
                f"{share:.0%} {word}: {text}, worse by, %",
                paper.get(share, ""),
                f"{worse:.1f} ({none:.2f} to {run[metric]:.2f})",
                how(results),
                shares_text(run),
                mark([run], [worse <= most]) if share in paper else "",
            )
        )
    lines += [
        Row(
            f"{share:.0%} {word}: TTFT of returning turns, ms, mean / p50 / p99",
            "",
            f"{run['ttft_ms']:.1f} / {run['ttft_p50_ms']:.1f} / {run['ttft_p99_ms']:.1f}",
            how(results),
            shares_text(run),
        )
        for share, run in zip(results["shares"], runs, strict=True)
    ]
    return lines


@unless_skipped
def rows_missed(results: Results) -> list[Row]:
    paper = {0.1: "6 (4.5); 14.6 (21.3 to 24.4 ms, same place and Figure 19)"}
    last, beside = results["runs"][-1], results["beside"]
    times = ratio(last["normalized_ms"], beside["normalized_ms"])
    return [
        *_rows_by_share(results, "of hints missed", "normalized_ms", paper, 14.6),
        Row(
            f"{results['shares'][-1]:.0%} missed, ms a token over {NAMES['sticky']}",
            "1 (at 100%)",
            f"{times:.2f}",
            how(results),
            shares_text(beside),
            mark([last], [times <= 1]),
        ),
    ]


@unless_skipped
def rows_spurious(results: Results) -> list[Row]:
    return _rows_by_share(results, "spurious hints", "requests_per_s", {0.6: "2.1"}, 2.1)


def measure_urgent(work: Work, effort: Effort) -> Results:
    """By the share of urgent sessions, ours and vLLM's."""
    shares = effort.pick([0.3], URGENT[1:2], URGENT)
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
            shares_text(ours),
            mark([ours], [_tpot(ours, who) < _tpot(theirs, who)]),
        )
        for share, ours, theirs in zip(
            results["shares"], results["runs"], results["recompute"], strict=True
        )
        for who in ("urgent", "other")
    ]


FIGURE_19 = Figure(
    "19",
    "Figure 19: hints that are missed",
    measure_missed,
    draw_missed,
    rows_missed,
    "Milliseconds of a whole turn by its output tokens. The paper's 10% cost 3.1 of 21.3 ms, which "
    "is 14.6%, and which its text calls 6%. 256 people with documents, as in Figure 11.",
)
FIGURE_20 = Figure(
    "20",
    "Figure 20: hints without a turn",
    measure_spurious,
    draw_spurious,
    rows_spurious,
    "A user begins to type and does not send: a hint for a session that was here before, and no "
    "turn. LLaMA-2 13B, as in the paper's text, with the load of Figure 12.",
)
FIGURE_21 = Figure(
    "21",
    "Figure 21: urgent sessions",
    measure_urgent,
    draw_urgent,
    rows_urgent,
    "Some sessions are urgent. vLLM's own order of priority is taken to be that of our workers.",
)
