"""Figures 9, 10 and 11: the model zoo and other workloads on larger clusters."""

from typing import NamedTuple, get_args

from matplotlib.figure import Figure as Drawing

from loadtest.papers.base import (
    COMPARED,
    OURS,
    Effort,
    Figure,
    Results,
    Row,
    Work,
    colour,
    label,
    new_drawing,
    ratio,
    searches,
)
from loadtest.policies import BASELINES
from loadtest.simulator.arrivals import popularity
from loadtest.simulator.bounds import staggered_rps
from loadtest.simulator.models import copies, linear_model, zoo_models
from loadtest.simulator.scenario import BAD_RATE_MAX, Scenario
from shared.zoo import Device, Subset, zoo_model

# Symphony over the best baseline (section 5.1).
PAPER_9 = {
    "1080ti mixed": "2.0", "1080ti strong": "3.5", "1080ti weak": "1.23",
    "a100 mixed": "2.0", "a100 strong": "5.7", "a100 weak": "1.10",
}  # fmt: skip


def measure_9(work: Work, effort: Effort) -> Results:
    """Each part of the zoo on 64 GPUs of each kind."""
    setups = {
        f"{device} {which}": Scenario(models=tuple(zoo_models(device, which)), num_gpus=64)
        for device in get_args(Device)
        for which in get_args(Subset)
    }
    if effort.level == "tiny":
        setups = {"1080ti weak": setups["1080ti weak"].changed(num_gpus=8)}
    policies = (*COMPARED, "eager")
    found = searches(
        work,
        effort,
        [each.changed(policy=policy) for each in setups.values() for policy in policies],
    )
    rates = iter(value["rps"] for value in found)
    return {
        name: {
            "staggered_rps": round(staggered_rps(each.models, each.shares, each.num_gpus), 1),
            "policies": {policy: next(rates) for policy in policies},
        }
        for name, each in setups.items()
    }


def draw_9(results: Results) -> Drawing:
    """Bars by setup and policy; lines are the staggered bound."""
    drawing = new_drawing(2, 1)
    for index, device in enumerate(get_args(Device)):
        axes = drawing.add_subplot(1, 2, index + 1)
        setups = [name for name in results if name.startswith(device)]
        for place, name in enumerate(setups):
            policies = results[name]["policies"]
            width = 0.8 / len(policies)
            for nth, (policy, rps) in enumerate(policies.items()):
                at = place - 0.4 + width * (nth + 0.5)
                text = policy if place == 0 else None
                axes.bar(at, rps / 1e3, width, color=colour(policy), label=text)
            bound = results[name]["staggered_rps"] / 1e3
            axes.plot([place - 0.4, place + 0.4], [bound, bound], "k--", lw=0.8)
        axes.set_xticks(range(len(setups)), [name.split()[1] for name in setups])
        label(axes, f"{device}, 64 GPUs", "", "goodput, 1,000 r/s")
        if setups:
            axes.legend(fontsize=7)
    return drawing


def rows_9(results: Results) -> list[Row]:
    lines = []
    for name, found in results.items():
        policies = found["policies"]
        for policy, rps in policies.items():
            lines.append(Row(f"{name}, {policy}, r/s", "", f"{rps:.0f}"))
        lines.append(Row(f"{name}, staggered bound, r/s", "", f"{found['staggered_rps']:.0f}"))
        rivals = [policies[policy] for policy in BASELINES if policy in policies]
        if rivals:
            for ours in OURS:
                times = ratio(policies[ours], max(rivals))
                lines.append(
                    Row(f"{name}, {ours} over best baseline", PAPER_9[name], f"{times:.2f}")
                )
    return lines


FIGURE_9 = Figure(
    "9",
    "Figure 9: the model zoo on 64 GPUs",
    measure_9,
    draw_9,
    rows_9,
    "Every model equally popular, Poisson arrivals.",
)

OFFERED_RPS = 15_000.0


class Need(NamedTuple):
    """A search for the fewest GPUs, of at most `most`."""

    scenario: Scenario
    rps: float
    most: int


def fewest_gpus(need: Need) -> int | None:
    """The fewest GPUs that serve the rate; None if `most` do not."""

    def is_enough(num_gpus: int) -> bool:
        result = need.scenario.changed(num_gpus=num_gpus).run(need.rps, gives_up=True)
        return not result.was_given_up and result.worst_bad_rate <= BAD_RATE_MAX

    if not is_enough(need.most):
        return None
    low, high = 0, need.most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def measure_10(work: Work, effort: Effort) -> Results:
    """One model and all models of the A100 table at 15,000 r/s."""
    one = zoo_model("a100", "ResNet50")
    single = linear_model(one.name, one.alpha_ms, one.beta_ms, 25.0)
    setups = {
        "ResNet50, 25 ms": Scenario(models=(single,), num_gpus=1),
        "37 models": Scenario(models=tuple(zoo_models("a100")), num_gpus=1),
    }
    if effort.level == "tiny":
        setups.popitem()
    most = {"ResNet50, 25 ms": 40, "37 models": 256}
    needs = [
        Need(effort.sized(each.changed(policy=policy), OFFERED_RPS), OFFERED_RPS, most[name])
        for name, each in setups.items()
        for policy in COMPARED
    ]
    found = iter(work.map(fewest_gpus, needs))
    return {
        name: {"most": most[name], "policies": {policy: next(found) for policy in COMPARED}}
        for name in setups
    }


def draw_10(results: Results) -> Drawing:
    """Bars; an empty place is more than was tried."""
    drawing = new_drawing()
    for index, (name, found) in enumerate(results.items()):
        axes = drawing.add_subplot(1, 2, index + 1)
        for place, (policy, num_gpus) in enumerate(found["policies"].items()):
            axes.bar(place, num_gpus or 0, color=colour(policy))
            text = str(num_gpus) if num_gpus else f"> {found['most']}"
            axes.text(place, num_gpus or 0, text, ha="center", va="bottom", fontsize=8)
        axes.set_xticks(range(len(found["policies"])), list(found["policies"]), rotation=25)
        label(axes, name, "", "fewest GPUs for 15,000 r/s")
    return drawing


def rows_10(results: Results) -> list[Row]:
    paper = {
        ("ResNet50, 25 ms", "nexus"): "2 to 6 more",
        ("ResNet50, 25 ms", "shepherd"): "2 to 6 more",
        ("ResNet50, 25 ms", "clockwork"): "more than twice",
        ("37 models", "nexus"): "166% more",
        ("37 models", "shepherd"): "90% more",
        ("37 models", "clockwork"): "cannot",
    }
    lines = []
    for name, found in results.items():
        ours = found["policies"][OURS[0]]
        for policy, num_gpus in found["policies"].items():
            text = str(num_gpus) if num_gpus else f"more than {found['most']}"
            if num_gpus and ours and policy not in OURS:
                text += f" ({num_gpus - ours:+d}, {100 * (num_gpus / ours - 1):+.0f}%)"
            lines.append(Row(f"{name}, {policy}, GPUs", paper.get((name, policy), ""), text))
    return lines


FIGURE_10 = Figure(
    "10",
    "Figure 10: fewest GPUs for 15,000 r/s",
    measure_10,
    draw_10,
    rows_10,
    "A100 profiles, models equally popular.",
)


def measure_11(work: Work, effort: Effort) -> Results:
    """20 ResNet50-like models on 32 GPUs by target, popularity and burstiness."""
    slos = effort.pick([25], [20, 50], [15, 20, 25, 30, 40, 50, 75, 100])
    ways = [(spread, gamma) for spread in ("equal", "zipf:0.9") for gamma in (1.0, 0.05)]
    ways = effort.pick(ways[:1], ways, ways)
    scenarios = []
    for spread, gamma in ways:
        for slo in slos:
            model = linear_model("resnet", 1.053, 5.072, float(slo))
            scenario = Scenario(
                models=tuple(copies(model, 20)),
                num_gpus=32,
                gamma=gamma,
                weights=tuple(popularity(spread, 20)),
            )
            scenarios += [scenario.changed(policy=policy) for policy in COMPARED]
    rates = iter(value["rps"] for value in searches(work, effort.lighter(0.4), scenarios))
    setups: Results = {}
    for spread, gamma in ways:
        name = f"{spread}, {'Poisson' if gamma == 1.0 else f'Gamma {gamma:g}'}"
        by_slo = [{policy: next(rates) for policy in COMPARED} for _ in slos]
        setups[name] = {policy: [each[policy] for each in by_slo] for policy in COMPARED}
    return {"slo_ms": slos, "setups": setups}


def draw_11(results: Results) -> Drawing:
    """Goodput over the target, one plot a setup."""
    drawing = new_drawing(2, 2, 2.7)
    for index, (name, policies) in enumerate(results["setups"].items()):
        axes = drawing.add_subplot(2, 2, index + 1)
        for policy, rates in policies.items():
            axes.plot(
                results["slo_ms"],
                [rps / 1e3 for rps in rates],
                marker=".",
                label=policy,
                color=colour(policy),
            )
        label(axes, name, "target, ms", "goodput, 1,000 r/s")
        axes.legend(fontsize=7)
    return drawing


def rows_11(results: Results) -> list[Row]:
    lines = []
    for name, policies in results["setups"].items():
        for index, slo in enumerate(results["slo_ms"]):
            rates = " / ".join(f"{policies[policy][index]:.0f}" for policy in policies)
            what = f"{name}, {slo} ms: {' / '.join(policies)}, r/s"
            lines.append(Row(what, "", rates))
    return lines


FIGURE_11 = Figure(
    "11",
    "Figure 11: target, popularity, burstiness",
    measure_11,
    draw_11,
    rows_11,
    "20 ResNet50-like models (1.053, 5.072) on 32 GPUs.",
)
