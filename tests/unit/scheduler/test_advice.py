"""Advice on workers, as metrics and on the bus."""

import asyncio
from typing import cast

import pytest

from services.scheduler.advice import ADD, ONESHOT, REMOVE, publish_advice
from shared.bus import Bus
from shared.ids import ModelId
from shared.wire.messages import AutoscaleAdvice
from shared.wire.subjects import AUTOSCALE_ADVICE
from tests.memory_bus import MemoryBus


def shown() -> list[dict[str, float]]:
    """Both metrics by model."""
    return [
        {each.labels["model"]: each.value for made in metric.collect() for each in made.samples}
        for metric in (ADD, REMOVE)
    ]


@pytest.mark.parametrize("model_id", [ModelId("m"), None])
def test_a_model_has_metrics_while_it_has_workers_or_lacks_them(model_id: ModelId | None) -> None:
    bus, model = MemoryBus(), model_id or ONESHOT
    ADD.clear()  # of what other tests in this process have shown
    REMOVE.clear()
    steps = [(0, 0, 0), (0, 2, 0), (3, 0, 1), (3, 0, 0), (0, 0, 0), (0, 0, 0)]
    for num_workers, add, remove in steps:
        advice = AutoscaleAdvice(
            model_id=model_id, num_workers=num_workers, add=add, remove=remove,
            bad_rate=0.0, idle_share=0.0,
        )  # fmt: skip
        asyncio.run(publish_advice(cast(Bus, bus), advice))
        has_any = num_workers or add
        assert shown() == ([{model: add}, {model: remove}] if has_any else [{}, {}])
        assert bus.published[-1] == (AUTOSCALE_ADVICE, advice)
    assert len(bus.published) == len(steps)
