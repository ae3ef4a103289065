"""Figures 11 to 14 and 18: ours beside other systems, by users."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import Effort, Figure, Results, Row, Work, ratio
from loadtest.papers.symphony.evidence import mark, shares_text
from loadtest.papers.symphony.runs import CHATS, LLAMA_13B, LLAMA_70B, NAMES
from loadtest.papers.symphony.skipping import unless_skipped
from loadtest.papers.symphony.sweeps import (
    draw_sweep,
    how,
    row_of_best,
    row_of_load,
    row_of_ratio,
    rows_of_values,
    series,
    sweep,
    users_at,
)

COMPARED = [
    "symphony", "no hints", "recompute", "prefix-cache", "sticky", "migrate-sticky", "remote"
]  # fmt: skip
FEW = ["symphony", "no hints", "recompute", "sticky", "remote"]
SHOWN = ["tpot_ms", "ttft_ms", "requests_per_s"]
LIKE = 20.5 / 18.5  # Figure 11's "similar" TPOT: 18.5 ms of vLLM's 64 users, 20.5 of ours
BURST = "burstgpt-10x"
USERS_8B = [128, 256, 384]  # of documents: what GPUs hold, what host memory holds, and more
HOSTS_70B = 2  # with one worker each


def measure_8b(work: Work, effort: Effort) -> Results:
    """All systems, LLaMA-3.1 8B."""
    users = effort.pick([64], USERS_8B, USERS_8B)
    return sweep(work, effort, COMPARED, users)


def measure_13b(work: Work, effort: Effort) -> Results:
    """LLaMA-2 13B, whose KV is six times as large, with the paper's sessions and people who "
    "read."""
    users = effort.pick([64], [512, 1024], [256, 512, 1024])
    return sweep(work, effort, FEW, users, profile=LLAMA_13B, trace=CHATS)


def measure_70b(work: Work, effort: Effort) -> Results:
    """LLaMA-3.1 70B on all four GPUs of a host."""
    users = effort.pick([16], [24, 48], [24, 48, 64])
    return sweep(
        work, effort, FEW, users,
        profile=LLAMA_70B, workers=HOSTS_70B, gpus_per_worker=4,
    )  # fmt: skip


def measure_burst(work: Work, effort: Effort) -> Results:
    """BurstGPT's sessions on LLaMA-2 13B, where they are more than GPUs hold."""
    users = effort.pick([64], [512, 1024], [512, 1024])
    return sweep(work, effort, FEW, users, trace=BURST, profile=LLAMA_13B)


def measure_remote(work: Work, effort: Effort) -> Results:
    """LMCache beside ours, also with compression."""
    users = effort.pick([64], USERS_8B, USERS_8B)
    systems = ["symphony", "symphony, int8 below", "no hints", "remote"]
    return sweep(work, effort, systems, users)


def measure_prefill(work: Work, effort: Effort) -> Results:
    """Answers of one token, and 1,024 new tokens to every returning turn."""
    users = effort.pick([64], USERS_8B[:2], USERS_8B[:2])
    systems = ["symphony", "no hints", "sticky", "migrate-sticky", "remote"]
    return sweep(work, effort, systems, users, trace="prefill-documents")


def draw(results: Results) -> Drawing:
    """TPOT, TTFT and throughput by users."""
    return draw_sweep(results, SHOWN)


Compared = Sequence[tuple[str, str, str, float | None]]


def _rows(compared: Compared, shown: Sequence[str]) -> Callable[[Results], list[Row]]:
    """Of a sweep: metric, system, the paper's words, and the least that meets them."""

    @unless_skipped
    def rows(results: Results) -> list[Row]:
        return [
            row_of_load(results),
            *(row_of_ratio(results, *each) for each in compared if each[1] in results["runs"]),
            *(row_of_best(results, metric) for metric in shown),
            *rows_of_values(results, shown),
        ]

    return rows


ROWS_8B: Compared = [
    ("tpot_ms", "recompute", "1.4 to 1.9", 1.9),
    ("tpot_ms", "prefix-cache", "", None),
    ("tpot_ms", "sticky", "up to 2.5", 2.5),
    ("tpot_ms", "migrate-sticky", "up to 1.6", 1.6),
    ("ttft_ms", "recompute", "up to 2.4", 2.4),
    ("ttft_ms", "sticky", "up to 2.4", 2.4),
    ("ttft_ms", "no hints", "", None),
    ("requests_per_s", "sticky", "4.2 at 1,024 users", 4.2),
    ("requests_per_s", "migrate-sticky", "1.9 at 1,024 users", 1.9),
]
ROWS_13B: Compared = [
    ("tpot_ms", "recompute", "1.31 to 1.9 (4.2); up to 2.6 (Figure 12)", 1.9),
    ("tpot_ms", "sticky", "up to 2.6 (Figure 12)", 2.6),
    ("ttft_ms", "recompute", "2.4 (4.2); 2.56 (Figure 12)", 2.4),
    ("ttft_ms", "sticky", "2.4 (4.2); 2.56 (Figure 12)", 2.4),
    ("ttft_ms", "no hints", "", None),
]
ROWS_70B: Compared = [
    ("tpot_ms", "recompute", "", None),
    ("tpot_ms", "sticky", "", None),
    ("ttft_ms", "recompute", "", None),
    ("ttft_ms", "sticky", "", None),
    ("ttft_ms", "no hints", "", None),
]
ROWS_BURST: Compared = [
    ("tpot_ms", "recompute", "up to 2.5", 2.5),
    ("tpot_ms", "sticky", "up to 2.5", 2.5),
    ("ttft_ms", "recompute", "", None),
    ("ttft_ms", "no hints", "", None),
]
PREFILL_SHOWN = ["ttft_ms", "ttft_p50_ms", "ttft_p99_ms", "requests_per_s"]
ROWS_PREFILL: Compared = [
    ("ttft_p50_ms", "remote", "better", 1.0),
    ("ttft_p99_ms", "remote", "better", 1.0),
    ("ttft_ms", "sticky", "better", 1.0),
    ("ttft_ms", "migrate-sticky", "better", 1.0),
    ("requests_per_s", "sticky", "better", 1.0),
]


@unless_skipped
def rows_8b(results: Results) -> list[Row]:
    return [*_rows(ROWS_8B, SHOWN)(results), _row_of_users(results)]


def _row_of_users(results: Results) -> Row:
    """By how many times more users ours serves at the TPOT that vLLM has with the fewest."""
    most_ms = series(results, "recompute", "tpot_ms")[0] * LIKE
    ours = users_at(results, "symphony", most_ms)
    theirs = users_at(results, "recompute", most_ms)
    is_end, runs = ours == results["users"][-1], results["runs"]["symphony"]
    times = ratio(ours, theirs)
    return Row(
        f"users at a TPOT of {most_ms:.1f} ms, ours over recompute's",
        "4 (64 to 256 users, 18.5 to 20.5 ms: Figure 11); 8 (64 to 512: section 4.2); "
        "4 at 1.3% more latency (abstract)",
        f"{'at least ' * is_end}{times:.1f} ({theirs:.0f} to {ours:.0f})",
        how(results),
        shares_text(runs[-1]),
        mark(runs[-1:], [times >= 4]),
    )


def draw_remote(results: Results) -> Drawing:
    """Time of a turn and TTFT, by users."""
    return draw_sweep(results, ["normalized_ms", "ttft_ms"])


@unless_skipped
def rows_remote(results: Results) -> list[Row]:
    rows = [row_of_load(results)]
    for ours, least in (("symphony", 35.0), ("symphony, int8 below", 47.0)):
        gains = [
            100 * (1 - ratio(mine, other))
            for mine, other in zip(
                series(results, ours, "normalized_ms"),
                series(results, "remote", "normalized_ms"),
                strict=True,
            )
        ]
        runs = results["runs"][ours]
        what = f"time of a turn, {ours}, less than {NAMES['remote']}, %"
        text = " / ".join(f"{each:.1f}" for each in gains)
        is_met = mark(runs, [each >= least for each in gains])
        rows.append(
            Row(what, f"up to {least:.0f}", text, how(results), shares_text(runs[-1]), is_met)
        )
    shown = ["normalized_ms", "ttft_ms", "ttft_p50_ms", "ttft_p99_ms"]
    return [*rows, *rows_of_values(results, shown)]


FIGURE_11 = Figure(
    "11",
    "Figure 11: all systems, LLaMA-3.1 8B",
    measure_8b,
    draw,
    rows_8b,
    "Each system is a placement policy of the production scheduler, without what that system has "
    "not: `recompute` keeps no KV between turns, `prefix-cache` what happens to stay in the pool, "
    "`sticky` keeps it in host memory, computes again what that does not hold, and does not move "
    "sessions; `migrate-sticky` moves running turns, which wait for their KV; `remote` is LMCache "
    "(Figure 14). People ask about documents of 8,000 to 60,000 tokens (`documents`) and come back "
    "after minutes. The KV of 128 users fits GPUs, that of 256 is more than host memory holds. "
    "Who pauses for a hundred seconds cannot ask four times as often because answers come sooner: "
    "requests a second differ by no more than a pause and a turn of theirs over a pause and a turn "
    "of ours.",
)
FIGURE_12 = Figure(
    "12",
    "Figure 12: all systems, LLaMA-2 13B",
    measure_13b,
    draw,
    _rows(ROWS_13B, SHOWN),
    "Sessions of the paper's length, and people who read (`sharegpt-like`). This model has every "
    "head's keys and values, 819,200 bytes a token: GPUs hold 440,000 tokens in all, host memory "
    "604,000. A disk reads 3,900 tokens a second, and a GPU computes 6,600: below host memory, "
    "computing again is faster than loading, which bounds every ratio.",
)
FIGURE_70B = Figure(
    "70b",
    "Figure 70b: LLaMA-3.1 70B, not in the paper",
    measure_70b,
    draw,
    _rows(ROWS_70B, SHOWN),
    "One worker on all four GPUs of a host, as if it were one GPU with their memory, bandwidth, "
    "operations and PCIe links: bf16 weights of 141 GB, room for 420,000 tokens, and nothing lost "
    "to what GPUs send each other. Symphony has no tensor parallelism: this is the shape, not a "
    "product. Computing a token takes the host 0.2 ms, reading it from its disk 0.1.",
)
FIGURE_13 = Figure(
    "13",
    "Figure 13: BurstGPT",
    measure_burst,
    draw,
    _rows(ROWS_BURST, SHOWN),
    "Real sessions, their pauses made a tenth as long (`burstgpt-10x`): at their real ones, a "
    "thousand users make some two requests a second. LLaMA-2 13B: the KV of an 8B model fits GPUs.",
)
FIGURE_14 = Figure(
    "14",
    "Figure 14: LMCache, and compression below",
    measure_remote,
    draw_remote,
    rows_remote,
    "`remote` looks for KV when the turn is there, loads all of it before the pass, at 1/3.5 of "
    "its size (CacheGen, abstract), and unpacks it on the GPU, where meanwhile no step runs, at "
    "250 GB/s: DietGPU's decoder on an A100 (its README), since CacheGen's is not published in "
    "bytes a second. Ours with int8 below has 0.53 of the size everywhere but on GPUs, as "
    "measured.",
)
FIGURE_18 = Figure(
    "18",
    "Figure 18: prompts alone",
    measure_prefill,
    lambda results: draw_sweep(results, ["ttft_ms", "ttft_p99_ms"]),
    _rows(ROWS_PREFILL, PREFILL_SHOWN),
    "The people of Figure 11, whose turns after the first have 1,024 new tokens, and whose answers "
    "have one (`prefill-documents`), so that there is no TPOT; the paper gives no numbers.",
)
