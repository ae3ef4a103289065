"""The model that all workers of a world serve: a function in place of weights."""

from dataclasses import dataclass

from loadtest.world.timeline import MS
from shared.ids import ModelId
from shared.messages import FinishReason, SamplingParams

MODEL = ModelId("m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Attributes:
    step_ns, token_ns: a step takes so long, and so much more for each token.
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

    def next_token(self, tokens: list[int]) -> int:
        """The sampler: a function of everything before, so that no undisturbed run is needed."""
        return hash(tuple(tokens)) % self.vocab_size

    def reference(
        self, prompt: list[int], sampling: SamplingParams
    ) -> tuple[list[int], FinishReason]:
        """What a turn must generate, and why it ends."""
        tokens = list(prompt)
        while True:
            tokens.append(self.next_token(tokens))
            num_generated = len(tokens) - len(prompt)
            if tokens[-1] == self.end_token and not sampling.ignore_eos:
                return tokens[len(prompt) :], "stop"
            if num_generated >= sampling.max_tokens or len(tokens) >= self.max_model_len:
                return tokens[len(prompt) :], "length"
