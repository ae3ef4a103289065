"""Figures 3 and 5: how many turns dialogues have, and how many tokens are computed again."""

from random import Random

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.workloads import burstgpt, chats
from loadtest.workloads.people import tokens_of
from loadtest.workloads.registry import why_absent

TURNS = list(range(1, 25))  # the longest session has so many


def measure(work: Work, effort: Effort) -> Results:
    """Dialogues of `sharegpt-like`, and BurstGPT's sessions: how many have at most so many turns,
    and what share of all prompts' tokens was computed before, by turns."""
    (found,) = work.map(_measure, [effort.pick(200, 5_000, 50_000)])
    return found


def _measure(num_dialogues: int) -> Results:
    if why := why_absent("sharegpt-like") or why_absent("burstgpt"):
        return {"skipped": why}
    dialogues, rng = chats.load(), Random(1)
    drawn = [
        [(tokens_of(words), rng.choice(dialogues.answers)) for words in dialogues.draw(rng)]
        for _ in range(num_dialogues)
    ]
    sessions = [
        [(said.num_new, said.num_output) for said in session]
        for session in burstgpt.load_sessions()
    ]
    return {
        name: {
            "several_percent": round(100 * sum(len(each) > 1 for each in some) / len(some), 1),
            "most": max(map(len, some)),
            "cdf": [round(sum(len(each) <= n for each in some) / len(some), 4) for n in TURNS],
            "mean_tokens": round(sum(sum(map(sum, each)) for each in some) / len(some)),
            "wasted": [round(wasted_share(some, n), 4) for n in TURNS],
        }
        for name, some in (("sharegpt-like", drawn), ("burstgpt", sessions))
    }


def wasted_share(dialogues: list[list[tuple[int, int]]], num_turns: int) -> float:
    """Of the prompts' tokens in the first `num_turns` turns of those that have as many, those that
    stood in the session before; 0 if there are none.

    >>> wasted_share([[(10, 30), (20, 5)]], 1), wasted_share([[(10, 30), (30, 5)]], 2)
    (0.0, 0.5)
    """
    prompts = again = 0
    for dialogue in dialogues:
        if len(dialogue) < num_turns:
            continue
        history = 0
        for said, answered in dialogue[:num_turns]:
            prompts += history + said
            again += history
            history += said + answered
    return again / prompts if prompts else 0.0


def _draw(results: Results, what: str, title: str, y: str) -> Drawing:
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    for name, found in results.items():
        if name == "skipped":
            axes.plot([0], [0])
            continue
        points = [(n, each) for n, each in zip(TURNS, found[what], strict=True) if each]
        axes.plot(*zip(*points, strict=True), ".-", label=name)
        axes.legend(fontsize=7)
    label(axes, title, "turns", y)
    return drawing


def draw_turns(results: Results) -> Drawing:
    """Share of sessions by turns."""
    return _draw(results, "cdf", "turns of a session", "sessions with at most so many")


def draw_wasted(results: Results) -> Drawing:
    """Share of tokens by turns."""
    return _draw(results, "wasted", "when history is computed again", "share of prompts' tokens")


HOW = "simulated: drawn from the data, no cluster"


@unless_skipped
def rows_of_turns(results: Results) -> list[Row]:
    rows = []
    for name, found in results.items():
        is_chat = name == "sharegpt-like"
        rows += [
            Row(
                f"{name}: sessions with several turns, %",
                "73.4" if is_chat else "",
                f"{found['several_percent']:g}",
                HOW,
            ),
            Row(
                f"{name}: most turns of a session",
                "beyond 400" if is_chat else "",
                f"{found['most']}",
                HOW,
            ),
            Row(
                f"{name}: tokens of a session, mean",
                "2.2 K" if is_chat else "",
                f"{found['mean_tokens']}",
                HOW,
            ),
        ]
    return rows


@unless_skipped
def rows_of_wasted(results: Results) -> list[Row]:
    paper = {3: "over 50"}
    return [
        Row(
            f"{name}: tokens computed again in sessions of {n} turns, %",
            paper.get(n, "") if name == "sharegpt-like" else "",
            f"{100 * found['wasted'][n - 1]:.1f}",
            HOW,
        )
        for name, found in results.items()
        for n in (2, 3, 5, 7)
        if found["wasted"][n - 1]
    ]


FIGURE_3 = Figure(
    "3",
    "Figure 3: turns of sessions",
    measure,
    draw_turns,
    rows_of_turns,
    "ShareGPT's text is not at hand. Our dialogues are those of OpenAssistant and MT-Bench-101, "
    "what share of them has several turns was *set* to the paper's, and those have as many as "
    "BurstGPT's sessions, which are real.",
)
FIGURE_5 = Figure(
    "5",
    "Figure 5: tokens that are computed again",
    measure,
    draw_wasted,
    rows_of_wasted,
    "Of all tokens of a session's prompts, those that were in it before. Section 1 of the paper "
    "has over 99% of ShareGPT's tokens, its Figure 5 a majority after three turns.",
)
