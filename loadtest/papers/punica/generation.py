"""Figure 11: tokens a second of whole requests."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure as Drawing

from loadtest.bench.lora.generation import Generation, GenerationPlan, open_generation
from loadtest.bench.sgmv.popularity import POPULARITIES
from loadtest.papers.base import Effort, Figure, Results, Row, Work, label, new_drawing, ratio
from loadtest.papers.real import here, model_folder, real

RANK = 16
SIDES = {
    "ours": "Symphony",
    "one_adapter": "transformers + PEFT, batches of one adapter",
    "mixed": "transformers + PEFT, mixed batches",
}
BASES = {"ours": "Symphony", "transformers": "transformers"}
# Section 7.2: Punica whatever is popular, vLLM without adapters.
PAPER_OURS, PAPER_VLLM = "1044 (7B), 693 (13B)", "1140 (7B), 789 (13B)"

PLANS = (
    GenerationPlan(num_requests=6, batch=3, prompt=6, said=2, enough_s=0.0),
    GenerationPlan(num_requests=16, batch=8, prompt=24, said=8, enough_s=4.0),
    GenerationPlan(num_requests=64, batch=32, prompt=48, said=20, enough_s=20.0),
)


def measure(work: Work, effort: Effort) -> Results:
    """Tokens a second of each side by popularity, and of both without adapters."""
    results = here()
    with TemporaryDirectory() as folder:
        source = model_folder(effort, results["dtype"], Path(folder))
        with open_generation(str(source), RANK, effort.pick(*PLANS)) as generation:
            generation.check()
            return results | _tokens_per_s(work, generation)


def _tokens_per_s(work: Work, generation: Generation) -> Results:
    of_side: dict[str, Callable[[str], float]] = {
        "ours": generation.ours,
        "one_adapter": generation.one_adapter,
        "mixed": generation.mixed,
    }
    cells = [(side, name) for name in POPULARITIES for side in SIDES]
    generation.ours("identical")  # what is slow the first time is not counted
    found = work.map(lambda cell: round(of_side[cell[0]](cell[1]), 1), cells)
    on_adapters: dict[str, dict[str, float]] = {side: {} for side in SIDES}
    for (side, name), tokens_per_s in zip(cells, found, strict=True):
        on_adapters[side][name] = tokens_per_s
    bases = [lambda: generation.ours("identical", on_base=True), generation.transformers]
    of_base = work.map(lambda base: round(base(), 1), bases)
    (on_vllm,) = work.map(lambda _: generation.vllm(), [None])
    return {
        "adapters": on_adapters,
        "base": dict(zip(BASES, of_base, strict=True)),
        "vllm": {name: round(tokens_per_s, 1) for name, tokens_per_s in on_vllm.items()},
    }


def draw(results: Results) -> Drawing:
    """Bars by popularity; lines for what runs without adapters."""
    drawing = new_drawing(1, width=8.8)
    axes = drawing.add_subplot()
    share = 0.8 / len(SIDES)
    for number, (side, name) in enumerate(SIDES.items()):
        values = results["adapters"][side]
        places = [place + share * number for place in range(len(values))]
        axes.bar(places, list(values.values()), share, label=name)
    for number, (side, name) in enumerate(BASES.items()):
        style = ("--", ":")[number]
        title = f"{name}, no adapters"
        axes.axhline(results["base"][side], color="k", lw=0.8, ls=style, label=title)
    if on_vllm := results.get("vllm"):
        axes.axhline(on_vllm["base"], color="k", lw=0.8, ls="-.", label="vLLM, no adapters")
    middle = share * (len(SIDES) - 1) / 2
    axes.set_xticks([place + middle for place in range(len(POPULARITIES))], list(POPULARITIES))
    axes.set_ylim(top=1.4 * axes.get_ylim()[1])  # room for the legend
    label(axes, "whole requests", "", "tokens/s")
    axes.legend(fontsize=7, ncols=2)
    return drawing


def rows(results: Results) -> list[Row]:
    how, lines = real(results), []
    for popularity in POPULARITIES:
        for side, name in SIDES.items():
            value = results["adapters"][side][popularity]
            paper = PAPER_OURS if side == "ours" else ""
            lines.append(Row(f"{popularity}, {name}, tokens/s", paper, f"{value:.1f}", how))
    for side, name in BASES.items():
        lines.append(Row(f"{name}, no adapters, tokens/s", "", f"{results['base'][side]:.1f}", how))
    on_vllm = results.get("vllm") or {}
    for name in ("base", *POPULARITIES):
        what = "vLLM, no adapters, tokens/s" if name == "base" else f"{name}, vLLM, tokens/s"
        paper = PAPER_VLLM if name == "base" else ""
        if on_vllm:
            lines.append(Row(what, paper, f"{on_vllm[name]:.1f}", how))
        elif name == "base":
            lines.append(Row(what, paper, "", "not measured"))
    ours, theirs = results["adapters"]["ours"], results["adapters"]["one_adapter"]
    for popularity in ("distinct", "identical"):
        over = ratio(ours[popularity], theirs[popularity])
        what = f"{popularity}, Symphony over batches of one adapter"
        lines.append(Row(what, "", f"{over:.1f}", how))
    return lines


FIGURE_11 = Figure(
    "11",
    "Figure 11: text generation",
    measure,
    draw,
    rows,
    "In small: 64 requests (16 in a quick run) to the model of 125 M instead of 1,000 to 7B, "
    "lengths from a lognormal distribution, at most 32 (8) at once, first come, first served, "
    "adapters of rank 16 on all linear layers, all in memory before it begins. Of *distinct* ones, "
    "as many as run at once have adapters of their own. Ours is core, step loop and executor "
    "without a network. transformers + PEFT goes batch by batch, each as long as its longest "
    "answer, and is stopped after some seconds; tokens beyond those asked for are not counted. "
    "vLLM runs the same requests where `SYMPHONY_VLLM_PYTHON` names a Python that has it "
    "(`.venv-vllm/bin/python`, which `up --engine vllm` makes), here on a CPU as ours does; the "
    "paper's, of which it gives the number without adapters, ran on a GPU. Each of its runs is "
    "made twice, and the second one counts; its engine can take adapters in all of them.",
)
