"""Figures 6 and 7: deferred batching against eager batching and against timeouts."""

import random
from functools import partial
from typing import Any

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import (
    OURS,
    Effort,
    Figure,
    Results,
    Row,
    Work,
    colour,
    label,
    marked,
    new_drawing,
    ratio,
    searches,
)
from loadtest.simulator.models import SimModel, copies, linear_model, zoo_models
from loadtest.simulator.scenario import Scenario
from services.scheduler.core.batching.batcher import WindowBatcher
from services.scheduler.core.batching.gathering import Gathering, PrefixGathering
from services.scheduler.core.batching.job import ModelSpec
from services.scheduler.core.batching.windows import TimeoutWindow, Window
from shared.zoo import zoo_model

SEED = 7
PAIR = (*OURS, "eager")


def timeout_share_rules(spec: ModelSpec, num_gpus: int, share: float) -> tuple[Window, Gathering]:
    """A timeout that is a share of each model's target."""
    return TimeoutWindow(int(share * spec.slo_ns)), PrefixGathering()


def measure_6(work: Work, effort: Effort) -> Results:
    """(a) by batching effect, (b) by timeout."""
    betas = effort.pick([1, 12], [1, 3, 6, 10, 15], list(range(1, 16)))
    by_beta = []
    for beta in betas:
        model = linear_model("m", 1.0, float(beta), 2.0 * (8 + beta))
        by_beta.append(Scenario(models=tuple(copies(model, 10)), num_gpus=32))
    found = searches(
        work, effort, [scenario.changed(policy=policy) for scenario in by_beta for policy in PAIR]
    )
    rates = [value["rps"] for value in found]
    cases = {
        str(beta): dict(zip(PAIR, rates[len(PAIR) * index :], strict=False))
        for index, beta in enumerate(betas)
    }
    return {"by_beta": cases, "by_timeout": _by_timeout(work, effort)}


def _by_timeout(work: Work, effort: Effort) -> Results:
    shares = effort.pick([0.3], [0.0, 0.15, 0.3, 0.45, 0.6, 0.75], [n / 20 for n in range(18)])
    one = zoo_model("a100", "ResNet50")
    single = linear_model(one.name, one.alpha_ms, one.beta_ms, 50.0)
    setups = {
        "ResNet50, 50 ms, 8 GPUs": Scenario(models=(single,), num_gpus=8),
        "37 models, 64 GPUs": Scenario(models=tuple(zoo_models("a100")), num_gpus=64),
    }
    scenarios = []
    for scenario in setups.values():
        scenarios += [scenario.changed(policy=policy) for policy in OURS]
        for share in shares:
            rules = partial(timeout_share_rules, share=share)
            scenarios.append(scenario.changed(make=partial(WindowBatcher, rules)))
    rates = [value["rps"] for value in searches(work, effort, scenarios)]
    step = len(OURS) + len(shares)
    return {
        name: {
            **dict(zip(OURS, rates[index * step :], strict=False)),
            "shares": shares,
            "timeout": rates[index * step + len(OURS) : (index + 1) * step],
        }
        for index, name in enumerate(setups)
    }


def draw_6(results: Results) -> Drawing:
    """Both relative to deferred batching as printed."""
    drawing = new_drawing()
    axes = drawing.add_subplot(1, 2, 1)
    betas = [int(beta) for beta in results["by_beta"]]
    for policy in (OURS[0], "eager"):
        shares = [
            100 * ratio(value[policy], value["deferred"]) for value in results["by_beta"].values()
        ]
        axes.plot(betas, shares, marker=".", label=policy, color=colour(policy))
    label(axes, "(a) by batching effect", "beta / alpha", "goodput, % of deferred")
    axes.legend(fontsize=7)
    axes = drawing.add_subplot(1, 2, 2)
    for name, found in results["by_timeout"].items():
        axes.plot(
            [100 * share for share in found["shares"]],
            [100 * ratio(rps, found["deferred"]) for rps in found["timeout"]],
            marker=".",
            label=name,
        )
    label(axes, "(b) by timeout", "timeout, % of the target", "goodput, % of deferred")
    axes.legend(fontsize=7)
    return drawing


def rows_6(results: Results) -> list[Row]:
    lines = [
        Row(
            f"(a) beta/alpha {beta}: eager, share of deferred",
            "about 100%" if beta == "1" else "",
            f"{100 * ratio(value['eager'], value['deferred']):.0f}%",
        )
        for beta, value in results["by_beta"].items()
    ]
    for name, found in results["by_timeout"].items():
        share, is_like = ratio(max(found["timeout"]), found["deferred"]), name.startswith("ResNet")
        lines.append(
            Row(
                f"(b) {name}: best timeout, share of deferred",
                "about 100%" if is_like else "much lower",
                f"{100 * share:.0f}%",
                mark=marked(is_met=share > 0.95 if is_like else share < 0.9),
            )
        )
    return lines


# Table 1.
TABLE_1: dict[str, list[Any]] = {
    "model": ["DenseNet121", "InceptionV3", "ResNet50V2", "VGG16", "Xception", "BERT", "mixed"],
    "num_models": [8, 16, 24, 32, 48, 64],
    "gpus_a_model": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "slo_ms": [20, 25, 30, 40, 50],
    "gamma": [0.1, 0.2, 0.3, 0.5, 0.7, 1.0],
}


def sample_workloads(num_workloads: int) -> list[dict[str, Any]]:
    """Some of Table 1's combinations, the same ones every time; half of them mixed, of DenseNet121
    or of BERT in equal parts, so that each part of the figure has some."""
    rng = random.Random(SEED)
    chosen = []
    for number in range(num_workloads):
        case = {key: rng.choice(values) for key, values in TABLE_1.items()}
        case["model"] = {0: "mixed", 1: "DenseNet121", 2: "BERT"}.get(
            number % 6, rng.choice(TABLE_1["model"][:-1])
        )
        if case["model"] == "mixed":
            case["num_models"], case["slo_ms"] = 35, 0
        chosen.append(case)
    return chosen


def workload(case: dict[str, Any]) -> Scenario:
    """A synthetic workload as a scenario."""
    models: list[SimModel]
    if case["model"] == "mixed":
        models = zoo_models("1080ti")
    else:
        profile = zoo_model("1080ti", case["model"])
        alpha_ms, beta_ms = profile.alpha_ms, profile.beta_ms
        model = linear_model(profile.name, alpha_ms, beta_ms, float(case["slo_ms"]))
        models = copies(model, case["num_models"])
    num_gpus = int(len(models) * case["gpus_a_model"])
    return Scenario(models=tuple(models), num_gpus=num_gpus, gamma=case["gamma"], seed=SEED)


def measure_7(work: Work, effort: Effort) -> Results:
    """Deferred and eager batching on sampled workloads."""
    cases = sample_workloads(effort.pick(2, 10, 120))
    scenarios = [workload(case).changed(policy=policy) for case in cases for policy in PAIR]
    found = searches(work, effort.lighter(0.2), scenarios)
    rates = [value["rps"] for value in found]
    return {
        "cases": [
            {**case, **dict(zip(PAIR, rates[len(PAIR) * index :], strict=False))}
            for index, case in enumerate(cases)
        ]
    }


def _gains(results: Results, policy: str, model: str | None = None) -> list[float]:
    return sorted(
        ratio(case[policy], case["eager"])
        for case in results["cases"]
        if case["eager"] and (model is None or case["model"] == model)
    )


def draw_7(results: Results) -> Drawing:
    """Goodput relative to eager batching: by kind of workload, and over all."""
    drawing = new_drawing()
    axes = drawing.add_subplot(1, 2, 1)
    kinds = ["mixed", "DenseNet121", "BERT"]
    for place, model in enumerate(kinds):
        for shift, policy in ((-0.12, "deferred"), (0.12, OURS[0])):
            gains = _gains(results, policy, model)
            axes.plot([place + shift] * len(gains), gains, "o", ms=4, color=colour(policy))
    axes.set_xticks(range(len(kinds)), kinds)
    label(axes, "(a-c) by models", "", "goodput / eager's")
    axes.axhline(1.0, color="k", lw=0.8)
    axes = drawing.add_subplot(1, 2, 2)
    for policy in OURS:
        gains = _gains(results, policy)
        shares = [(index + 1) / len(gains) for index in range(len(gains))]
        axes.step(gains, shares, where="post", label=policy, color=colour(policy))
    label(axes, "(d) all", "goodput / eager's", "share of workloads")
    axes.legend(fontsize=7)
    return drawing


def rows_7(results: Results) -> list[Row]:
    lines = []
    for policy in ("deferred", OURS[0]):
        gains, mixed = _gains(results, policy), _gains(results, policy, "mixed")
        num = len(gains)
        if mixed:
            spread = f"{100 * (mixed[0] - 1):+.0f}% to {100 * (mixed[-1] - 1):+.0f}%"
            is_met = marked(is_met=mixed[0] >= 1.35 and mixed[-1] >= 2.02)
            what = f"{policy}, mixed models, gain over eager"
            lines.append(Row(what, "+35% to +102%", spread, mark=is_met))
        for what, paper, share, least in (
            ("above 0.95 of eager", "almost all", sum(gain > 0.95 for gain in gains) / num, 0.95),
            ("with +50% or more", "16%", sum(gain >= 1.5 for gain in gains) / num, 0.16),
        ):
            is_met = marked(is_met=share >= least)
            name = f"{policy}, workloads {what}"
            lines.append(Row(name, paper, f"{100 * share:.0f}%", mark=is_met))
    return lines


FIGURE_6 = Figure(
    "6",
    "Figure 6: case studies",
    measure_6,
    draw_6,
    rows_6,
    "(a) alpha 1 ms, targets of 2 l(8), 10 models on 32 GPUs. (b) Timeouts as a share of each "
    "model's target, A100 profiles.",
)
FIGURE_7 = Figure(
    "7",
    "Figure 7: synthetic workloads",
    measure_7,
    draw_7,
    rows_7,
    "A seeded sample of Table 1's combinations (the paper ran all 5,880), 1080Ti profiles; half "
    "of it mixed, DenseNet121 or BERT in equal parts, the rest any model.",
)
