"""Models as the simulator knows them: what the scheduler believes, and what GPUs really do."""

from dataclasses import dataclass

from services.scheduler.core.batching.job import ModelSpec
from shared.zoo import Device, Subset, ZooModel, subset, zoo

SIZE_MAX = 1024
MS_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class SimModel:
    """A one-shot model: ``l(b) = alpha b + beta`` on every GPU.

    Attributes:
        size_max: the largest batch; by default what runs within the target.
    """

    name: str
    alpha_ms: float
    beta_ms: float
    slo_ms: float
    size_max: int

    @property
    def slo_ns(self) -> int:
        return round(self.slo_ms * MS_NS)

    def spec(self) -> ModelSpec:
        """What the scheduler is given."""
        return ModelSpec(self.name, self.batch_ns(), self.slo_ns)

    def batch_ns(self) -> list[int]:
        """Run time by size, ns; entry 0 is 0."""
        alpha_ns, beta_ns = self.alpha_ms * MS_NS, self.beta_ms * MS_NS
        return [0] + [round(alpha_ns * size + beta_ns) for size in range(1, self.size_max + 1)]


def linear_model(
    name: str, alpha_ms: float, beta_ms: float, slo_ms: float, size_max: int | None = None
) -> SimModel:
    """A model whose largest batch is what runs within its target, and at least one job.

    >>> linear_model("m", 1.0, 5.0, 12.0).size_max
    7
    """
    fits = int((slo_ms - beta_ms) / alpha_ms + 1e-9) if alpha_ms > 0 else SIZE_MAX
    return SimModel(name, alpha_ms, beta_ms, slo_ms, size_max or min(max(fits, 1), SIZE_MAX))


def copies(model: SimModel, num_models: int) -> list[SimModel]:
    """The same profile under so many names, as specialised variants of one model have."""
    if num_models == 1:
        return [model]
    return [
        SimModel(f"{model.name}-{n}", model.alpha_ms, model.beta_ms, model.slo_ms, model.size_max)
        for n in range(num_models)
    ]


def from_zoo(model: ZooModel) -> SimModel:
    """One model of the paper's tables."""
    return linear_model(model.name, model.alpha_ms, model.beta_ms, model.slo_ms)


def zoo_models(device: Device, which: Subset = "mixed") -> list[SimModel]:
    """The paper's model zoo on one device."""
    return [from_zoo(model) for model in subset(zoo(device), which)]
