"""Steps that begin with any history: its pages and its adapters' are where the step is told."""

from typing import Any

import torch

from kernels.sgmv.interface import NO_ADAPTER
from loadtest.bench.steps import PlannedSteps, make_llama, medians
from loadtest.papers.shapes import TINY_LLAMA


def test_rows_have_the_history_and_the_adapters_that_they_are_told() -> None:
    model = make_llama(TINY_LLAMA, torch.float32)
    steps = PlannedSteps(model, rows_max=3, context_max=130, ranks=[8, 8])
    said: list[torch.Tensor] = []
    forward = model.forward

    def noted(*given: Any) -> torch.Tensor:
        said.append(forward(*given).clone())
        return said[-1]

    model.forward = noted  # type: ignore[assignment]

    def logits(adapters: list[int], context: int, new: int = 1) -> torch.Tensor:
        assert steps.ms(adapters, context, new) > 0
        return said.pop()

    base = logits([NO_ADAPTER] * 3, 130)
    assert base.shape[0] == 3 and bool(base.isfinite().all())
    mixed = logits([0, 1, NO_ADAPTER], 130)
    changed = (mixed - base).abs().amax(1)
    assert bool((changed[:2] > 1e-6).all()) and changed[2] < 1e-6
    assert not torch.allclose(logits([1, 1, NO_ADAPTER], 130)[0], mixed[0], atol=1e-6)
    # The same token at another place, behind other history.
    assert not torch.allclose(logits([NO_ADAPTER] * 3, 70), base, atol=1e-6)
    assert logits([NO_ADAPTER] * 2, 64, 64).shape[0] == 2, "a prompt gives one token"
    steps.close()


def test_works_take_turns_and_the_first_of_each_does_not_count() -> None:
    order: list[str] = []
    took = {"a": iter([9.0, 1.0, 3.0, 2.0]), "b": iter([0.0, 5.0, 5.0, 6.0])}

    def work(name: str) -> float:
        order.append(name)
        return next(took[name])

    found = medians({"a": lambda: work("a"), "b": lambda: work("b")}, rounds=3)
    assert found == {"a": 2.0, "b": 5.0}
    assert order == ["a", "b"] * 4
