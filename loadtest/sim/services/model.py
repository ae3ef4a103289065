"""The model that all workers of a world serve: a function in place of weights."""

from dataclasses import dataclass, replace
from zlib import crc32

from loadtest.sim.timeline import MS
from shared.ids import ModelId
from shared.wire.messages import AdapterRef, FinishReason, LoraCard, LoraTarget, SamplingParams

MODEL = ModelId("m")
NUM_HARDWARE = 2
CLOSE_ONE_IN = 8
KILLER, BREAKER = 1, 2  # seeds of turns that end the process, or the row, that computes them

# Of rank 4, 8 and 16 the images have one, two and three blocks.
LORA_CARD = LoraCard(
    layers_path="layers",
    num_layers=1,
    element_bytes=4,
    page_bytes=256,
    targets=[LoraTarget(name="q", num_in=4, num_out=4)],
)
NO_ADAPTER = ""


def adapter(name: str, lora_rank: int) -> AdapterRef:
    """An adapter of this rank; its name determines its weights."""
    return AdapterRef(adapter_hash=name, name=name, lora_rank=lora_rank, ranks={"q": lora_rank})


ADAPTERS = tuple(adapter(f"adapter-{rank}{which}", rank) for rank in (4, 8, 16) for which in "ab")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Attributes:
    step_ns, token_ns: a step takes so long, and so much more for each token.
    is_rounded: what leaves the pool is, which is fatal to all but KV.
    """

    num_layers: int
    step_ns: int = 20 * MS
    token_ns: int = MS // 10
    model_id: ModelId = MODEL
    fingerprint: str = "f"
    block_tokens: int = 4
    page_bytes: int = 64
    max_model_len: int = 60
    vocab_size: int = 23
    end_token: int = 0
    is_rounded: bool = False

    def rounded(self) -> "Model":
        """The same, stored as int8: its blocks are others, if their keys say so."""
        return replace(self, fingerprint=f"{self.fingerprint} int8", is_rounded=True)

    def next_token(self, tokens: list[int], hardware: int, adapter_hash: str) -> int:
        """The sampler: a function of everything before and of the adapter, so that no undisturbed
        run is needed. One token in eight is so close that another kind of hardware takes another
        one.
        """
        drawn = hash((crc32(adapter_hash.encode()), *tokens))  # texts hash otherwise every time
        is_close = drawn % CLOSE_ONE_IN == 0
        return (drawn // CLOSE_ONE_IN + (hardware if is_close else 0)) % self.vocab_size

    def may_follow(self, tokens: list[int], token: int, adapter_hash: str) -> bool:
        """Whether some hardware takes this token after `tokens`."""
        kinds = range(NUM_HARDWARE)
        return any(token == self.next_token(tokens, kind, adapter_hash) for kind in kinds)

    def finish(
        self, prompt: list[int], got: list[int], limits: SamplingParams
    ) -> FinishReason | None:
        """Why a turn ends that has said this much; None if it goes on."""
        if got and got[-1] == self.end_token and not limits.ignore_eos:
            return "stop"
        is_full = len(prompt) + len(got) >= self.max_model_len
        return "length" if is_full or len(got) >= limits.max_tokens else None
