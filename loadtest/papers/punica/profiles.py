"""What steps of Punica's testbeds take, and its requests, for what is simulated."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.papers.llm_servers import MS, Batch, M, adapters_of
from loadtest.workloads.traces import rows_of
from shared.profiles import LatencyProfile
from shared.wire.messages import AdapterRef, ModelSpeeds, StepModelFit

SEATS = 32  # section 5.1: the maximum batch size
LORA_RANK = 16  # section 7
LENGTHS = "text/sharegpt_turn_lengths_300.csv"
TOKENS_MAX = 2048  # of a prompt and its reply

# Section 1, Figure 1: a decode step of 1 to 32 turns takes 11 to 13 ms where histories are short
# (128) and 34 ms for 32 where they are long (2,048). A prompt token is 14 GFLOP at half of an
# A100's 312 TFLOP/s. 40 GB, less the weights' 13.5, hold 43,000 tokens.
LLAMA_7B = LatencyProfile(
    name="punica-a100-llama2-7b", base_ms=10.9, prefill_ms_per_token=0.09, decode_ms_per_turn=0.02,
    context_ms_per_token=3.4e-4, num_layers=32, kv_bytes_per_token=524_288, max_model_len=4096,
    num_kv_tokens=43_000,
)  # fmt: skip
# By data sheets, as those in `shared.profiles`: 8 A100 of 40 GB, each of 1,555 GB/s and 312
# TFLOP/s, of which 75% and 55% are reached, 140 GB of weights; and two reductions a layer, of 20 us
# each over NVLink (a guess).
LLAMA_70B = LatencyProfile(
    name="a100x8-llama2-70b", base_ms=18.2, prefill_ms_per_token=0.102, decode_ms_per_turn=0.06,
    context_ms_per_token=3.5e-5, num_layers=80, kv_bytes_per_token=327_680, max_model_len=4096,
    num_kv_tokens=400_000,
)  # fmt: skip
BYTES_PER_MS = 1_555e6 * 0.75  # of one A100 of 40 GB


@dataclass(frozen=True, slots=True)
class ProfileSteps:
    """Steps of a profile, which read each different adapter once.

    Attributes:
        adapter_bytes: that one GPU reads of an adapter.
    """

    profile: LatencyProfile
    adapter_bytes: int

    def step_ms(self, batch: Batch) -> float:
        num_decodes, num_prompt = len(batch.turns), batch.num_prompt_tokens
        step_ms = self.profile.step_ms(num_prompt, num_decodes, batch.num_context)
        adapters = {each.adapter.adapter_hash for each in batch.turns}
        return step_ms + len(adapters) * self.adapter_bytes / BYTES_PER_MS

    def fits(self) -> list[StepModelFit]:
        base_ns, unit_ns = self.profile.base_ms * MS, MS / BYTES_PER_MS
        return [
            StepModelFit(
                model_id=M, name="distinct", base_ns=base_ns, row_ns=0.0, unit_ns=unit_ns, r2=1.0
            )
        ]

    def speeds(self) -> ModelSpeeds:
        profile = self.profile
        return ModelSpeeds(
            model_id=M,
            token_ms=profile.prefill_ms_per_token,
            step_ms=profile.base_ms,
            row_ms=profile.decode_ms_per_turn,
        )

    def adapters(self, num: int) -> list[AdapterRef]:
        """So many of them."""
        return adapters_of([LORA_RANK] * num, self.adapter_bytes)


def adapter_bytes(sites: Sequence[tuple[int, int]], num_layers: int, num_gpus: int = 1) -> int:
    """What a GPU reads of an adapter of rank 16 in fp16: of each pair one side is split over all
    GPUs, the other one replicated (section 7.2).

    Args:
        sites: inputs and outputs of each projection; of one that is split by rows, swapped.

    >>> adapter_bytes([(4096, 4096)], num_layers=1)
    262144
    >>> adapter_bytes([(4096, 4096)], num_layers=1, num_gpus=8)
    147456
    """
    elements = sum(whole + split // num_gpus for whole, split in sites)
    return 2 * LORA_RANK * num_layers * elements


STEPS_7B = ProfileSteps(
    LLAMA_7B, adapter_bytes([(4096, 4096)] * 4 + [(4096, 11008)] * 3, num_layers=32)
)
STEPS_70B = ProfileSteps(
    LLAMA_70B,
    adapter_bytes(
        [(8192, 8192), (8192, 1024), (8192, 1024), (8192, 8192), *[(8192, 28672)] * 3],
        num_layers=80,
        num_gpus=8,
    ),
)


def lengths() -> list[tuple[int, int]]:
    """Of prompts and replies, as people sent them to ChatGPT."""
    found = [(int(row["input_tokens"]), int(row["output_tokens"])) for row in rows_of(LENGTHS)]
    return [each for each in found if sum(each) <= TOKENS_MAX]
