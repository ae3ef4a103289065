"""How fast models' queues go on, for what is said to turns that would wait too long."""

from dataclasses import dataclass

from shared.ids import ModelId

MEMORY = 0.9  # weight of what was, once another turn was admitted
PAUSE_NS = 10_000_000_000  # without an admission, after which the queue was empty, or all stood
MODELS_MAX = 1024


@dataclass(slots=True)
class _Rate:
    last_ns: int
    interval_ns: float = 0.0


class QueueRates:
    """The mean time between two admissions from a model's queue."""

    def __init__(self) -> None:
        self._rates: dict[ModelId, _Rate] = {}

    def on_admitted(self, model_id: ModelId, now_ns: int) -> None:
        """A turn of its queue got a worker."""
        rate = self._rates.get(model_id)
        if rate is None:
            if len(self._rates) < MODELS_MAX:
                self._rates[model_id] = _Rate(now_ns)
            return
        interval_ns, rate.last_ns = now_ns - rate.last_ns, now_ns
        if interval_ns < PAUSE_NS:
            rate.interval_ns = MEMORY * rate.interval_ns + (1 - MEMORY) * interval_ns

    def interval_ns(self, model_id: ModelId) -> int:
        """0 while it is not known.

        >>> rates = QueueRates()
        >>> for at_s in range(60): rates.on_admitted(ModelId("m"), at_s * 1_000_000_000)
        >>> round(rates.interval_ns(ModelId("m")) / 1e9, 1), rates.interval_ns(ModelId("n"))
        (1.0, 0)
        """
        rate = self._rates.get(model_id)
        return 0 if rate is None else int(rate.interval_ns)
