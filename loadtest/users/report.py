"""A run's report: `summary.json`, `summary.md` and pictures in one folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadtest.users.measures import Turn, summarise

JSON, MARKDOWN, TURNS = "summary.json", "summary.md", "turns.jsonl"
PICTURES = {
    "ttft_cdf.png": "Time to the first token",
    "ttft_over_time.png": "Time to the first token, over the run",
    "places.png": "Where prompt tokens were when their turn came",
    "hints.png": "What became of hints",
}


def write_report(
    folder: Path, turns: Sequence[Turn], settings: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """Write it all; returns the summary."""
    from loadtest.users.plots import draw_all

    folder.mkdir(parents=True, exist_ok=True)
    summary = {"settings": dict(settings), **summarise(turns, seconds)}
    pictures = draw_all(turns, summary["hints"], folder)
    (folder / JSON).write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2) + b"\n")
    lines = (orjson.dumps(turn.as_dict()) for turn in turns)
    (folder / TURNS).write_bytes(b"".join(line + b"\n" for line in lines))
    text = markdown(summary, [path.name for path in pictures])
    (folder / MARKDOWN).write_text(text)
    return summary


def markdown(summary: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """The summary for people."""
    settings = summary["settings"]
    lines = [
        f"# Load test: {settings.get('profile', '')}",
        "",
        ", ".join(f"{name} {value}" for name, value in settings.items() if value not in ("", None)),
        "",
        f"{summary['turns']} turns in {summary['seconds']:g} s, {summary['failures']} failed; "
        f"{summary['turns_per_s']:g} turns and {summary['output_tokens_per_s']:g} output tokens "
        "a second.",
        "",
        *kinds_table(summary),
        "",
        f"Time between tokens, ms: {_figures(summary['tpot_ms'])}.",
    ]
    if (total := summary["prompt_tokens"]) > 0:
        shares = {place: f"{100 * num / total:.1f} %" for place, num in summary["places"].items()}
        lines += ["", f"Prompt tokens: {total:,}, of them {_figures(shares)}."]
    if hints := summary["hints"]:
        lines += ["", f"Hints: {_figures(hints)}."]
        if lead_ms := summary["hint_lead_ms_p50"]:
            lines[-1] += (
                f" Half of those sent came {lead_ms / 1e3:.1f} s or less before their turn."
            )
    if troubles := summary["troubles"]:
        lines += ["", "Failures:", "", *(f"- {num}: {text}" for text, num in troubles.items())]
    for name in pictures:
        lines += ["", f"![{PICTURES[name]}]({name})"]
    return "\n".join(lines) + "\n"


def kinds_table(summary: Mapping[str, Any]) -> list[str]:
    """Turns by kind, as Markdown."""
    rows = [
        "| turns | how many | TTFT p50, ms | p90 | p99 | mean | prompt tokens | cached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, seen in summary["kinds"].items():
        ttft = seen["ttft_ms"]
        rows.append(
            f"| {kind} | {seen['turns']} | {ttft['p50']:.0f} | {ttft['p90']:.0f} "
            f"| {ttft['p99']:.0f} | {ttft['mean']:.0f} | {seen['prompt_tokens_mean']:.0f} "
            f"| {seen['cached_percent']:.0f} % |"
        )
    return rows


def _figures(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())
