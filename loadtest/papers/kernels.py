"""What steps of 7B on an A10 take with adapters, by the kernel that multiplies those (CaraServe,
section 2.3).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.papers.llm_servers import MS, Batch, M
from shared.wire.messages import ModelSpeeds, StepModelFit

TOKEN_MS = 0.25  # of a prompt: 14 GFLOP at half of an A10's 125 TFLOP/s


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a step takes: milliseconds, and as much again for each unit.

    Attributes:
        name: of the units, as `StepModelFit` has it.
    """

    name: str
    base_ms: float
    unit_ms: float
    token_ms: float = TOKEN_MS

    def step_ms(self, batch: Batch) -> float:
        ranks = [each.adapter.lora_rank for each in batch.turns]
        return self.ms(ranks, batch.num_prompt_tokens)

    def ms(self, ranks: Sequence[int], num_prompt_tokens: int) -> float:
        """Of a step with turns of these ranks.

        >>> round(KERNELS["BGMV"].ms([32] * 24, 0), 1), round(KERNELS["BGMV"].ms([64] * 16, 0), 1)
        (34.8, 35.8)
        """
        units = len(ranks) * max(ranks, default=0) if self.name == "padded" else sum(ranks)
        return self.base_ms + self.unit_ms * units + self.token_ms * num_prompt_tokens

    def slower(self, times: float) -> "Kernel":
        """One that takes so many times as long."""
        return replace(
            self,
            base_ms=times * self.base_ms,
            unit_ms=times * self.unit_ms,
            token_ms=times * self.token_ms,
        )

    def fits(self) -> list[StepModelFit]:
        return [
            StepModelFit(
                model_id=M, name=self.name, base_ns=self.base_ms * MS, row_ns=0.0,
                unit_ns=self.unit_ms * MS, r2=1.0,
            )
        ]  # fmt: skip

    def speeds(self) -> ModelSpeeds:
        return ModelSpeeds(model_id=M, token_ms=self.token_ms, step_ms=self.base_ms, row_ms=1e-3)


# Lines through both points of section 2.3 (Figure 5): 24 turns of rank 32, 16 of rank 64.
KERNELS = {
    "BGMV": Kernel("padded", 31.8, 1.0 / 256),
    "MBGMV": Kernel("unpadded", 33.5, 0.6 / 256),
}
