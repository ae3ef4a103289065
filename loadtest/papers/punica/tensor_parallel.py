"""Figure 12: tokens a second of 70B on eight GPUs."""

from functools import partial

import numpy as np
from matplotlib.figure import Figure as Drawing

from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.llm_servers import BEGINS_NS, LlmServers, Request, Shape
from loadtest.papers.punica.profiles import LENGTHS, LLAMA_70B, SEATS, STEPS_70B, lengths
from loadtest.policies.placement import SYSTEMS
from loadtest.workloads.traces import path_of

SIDES = {"ours": "any adapters in a batch", "one_adapter": "batches of one adapter"}
PAPER = {"ours": "441 to 446", "one_adapter": "21 to 25 (vLLM)"}
PAPER_IDENTICAL = {"ours": "441 to 446", "one_adapter": "457 (vLLM, no adapters)"}


def measure(work: Work, effort: Effort) -> Results:
    """``{side: {popularity: tokens a second}}``."""
    if not path_of(LENGTHS).is_file():
        return {"skipped": f"not here: {path_of(LENGTHS)}"}
    num = effort.pick(40, 300, 1000)
    cells = [(side, popularity) for side in SIDES for popularity in POPULARITIES]
    found = work.map(partial(_tokens_per_s, num), cells)
    results: Results = {side: {} for side in SIDES}
    for (side, popularity), tokens_per_s in zip(cells, found, strict=True):
        results[side][popularity] = round(tokens_per_s, 1)
    return results | {"num_requests": num}


def _tokens_per_s(num: int, cell: tuple[str, str]) -> float:
    """Of so many requests that are all there at the beginning."""
    side, popularity = cell
    rng = np.random.default_rng(12)
    rows = POPULARITIES[popularity](num)
    adapters = STEPS_70B.adapters(len(rows))
    which = rng.permutation(np.repeat(np.arange(len(rows)), rows))
    drawn = lengths()
    chosen = rng.integers(len(drawn), size=num)
    requests = [
        Request(0, adapters[adapter], *drawn[length])
        for adapter, length in zip(which, chosen, strict=True)
    ]
    shape = Shape(SEATS, prompts_max=1, is_one_adapter=side == "one_adapter")
    servers = LlmServers(SYSTEMS["recompute"].make, STEPS_70B, 1, requests, shape=shape)
    servers.run()
    ends_ns = max(each.last_ns for each in requests)
    return sum(each.num_output for each in requests) * 1e9 / (ends_ns - BEGINS_NS)


def draw(results: Results) -> Drawing:
    """Bars by popularity."""
    drawing = new_drawing(1)
    axes = drawing.add_subplot()
    for number, (side, name) in enumerate(SIDES.items()):
        values = list(results.get(side, {}).values())
        axes.bar([at + 0.4 * number for at in range(len(values))], values, 0.4, label=name)
    axes.set_xticks([at + 0.2 for at in range(len(POPULARITIES))], list(POPULARITIES))
    label(axes, f"70B on eight GPUs ({LLAMA_70B.name})", "", "tokens/s")
    axes.legend(fontsize=7)
    return drawing


def rows(results: Results) -> list[Row]:
    if "skipped" in results:
        return [Row(results["skipped"], "", "", "not measured")]
    how = f"simulated: profile {LLAMA_70B.name}, {results['num_requests']} requests"
    lines = []
    for side, name in SIDES.items():
        for popularity, value in results[side].items():
            paper = (PAPER_IDENTICAL if popularity == "identical" else PAPER)[side]
            lines.append(Row(f"{popularity}, {name}, tokens/s", paper, f"{value:.0f}", how))
    ours = results["ours"].values()
    slowest = f"{ratio(min(ours), max(ours)):.2f}"
    lines.append(Row("slowest over fastest popularity", "0.99", slowest, how))
    over = ratio(results["ours"]["distinct"], results["one_adapter"]["distinct"])
    lines.append(Row("distinct, over batches of one adapter", "about 20", f"{over:.1f}", how))
    return lines


FIGURE_12 = Figure(
    "12",
    "Figure 12: text generation, 70B on eight GPUs",
    measure,
    draw,
    rows,
    f"The rates are simulated, by the profile `{LLAMA_70B.name}`: what eight A100 of 40 GB can do "
    "by their data sheets, which the paper's programs did not reach. So compare what popularity "
    "changes, not tokens a second. Real is that a model split so computes the same: the logits of "
    "two gloo processes, with adapters and without, are those of one "
    "(`tests/unit/worker/device/parallel/test_ranks.py`). Adapters of rank 16 on all linear "
    "layers, one side of each pair replicated on every GPU, as the paper has it; a step reads each "
    "different adapter once. 1,000 requests (300 in a quick run) with ShareGPT's lengths, at most "
    f"{SEATS} at once, first come, first served. vLLM without adapters is simulated as batches of "
    "one adapter, of those that come one behind the other.",
)
