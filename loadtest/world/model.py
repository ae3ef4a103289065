"""The model that all workers of a world serve: a function in place of weights."""

from dataclasses import dataclass

from loadtest.world.timeline import MS
from shared.ids import ModelId
from shared.messages import FinishReason, SamplingParams

MODEL = ModelId("m")
NUM_HARDWARE = 2
CLOSE_ONE_IN = 8
KILLER, BREAKER = 1, 2  # seeds of turns that end the process, or the row, that computes them


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

    def next_token(self, tokens: list[int], hardware: int) -> int:
        """The sampler: a function of everything before, so that no undisturbed run is needed. One
        token in eight is so close that another kind of hardware takes another one.
        """
        drawn = hash(tuple(tokens))
        is_close = drawn % CLOSE_ONE_IN == 0
        return (drawn // CLOSE_ONE_IN + (hardware if is_close else 0)) % self.vocab_size

    def may_follow(self, tokens: list[int], token: int) -> bool:
        """Whether some hardware takes this token after `tokens`."""
        return any(token == self.next_token(tokens, kind) for kind in range(NUM_HARDWARE))

    def finish(
        self, prompt: list[int], got: list[int], limits: SamplingParams
    ) -> FinishReason | None:
        """Why a turn ends that has said this much; None if it goes on."""
        if got and got[-1] == self.end_token and not limits.ignore_eos:
            return "stop"
        is_full = len(prompt) + len(got) >= self.max_model_len
        return "length" if is_full or len(got) >= limits.max_tokens else None
