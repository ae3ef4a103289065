"""Advice on the number of workers, for what starts and stops them."""

from contextlib import suppress

from shared.bus import Bus
from shared.runtime.metrics import gauge
from shared.wire.messages import AutoscaleAdvice
from shared.wire.subjects import AUTOSCALE_ADVICE

ADD = gauge("autoscale_add", "Workers that a model lacks; oneshot: of all such", ["model"])
REMOVE = gauge("autoscale_remove", "Workers that a model does not need", ["model"])
ONESHOT = "oneshot"


async def publish_advice(bus: Bus, advice: AutoscaleAdvice) -> None:
    """Over the bus and as metrics, which a model has while it has workers or lacks them."""
    model = advice.model_id or ONESHOT
    if advice.num_workers or advice.add:
        ADD.labels(model).set(advice.add)
        REMOVE.labels(model).set(advice.remove)
    else:
        for metric in (ADD, REMOVE):
            with suppress(KeyError):  # it has none
                metric.remove(model)
    await bus.publish(AUTOSCALE_ADVICE, advice)
