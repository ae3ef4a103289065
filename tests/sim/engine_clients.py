"""Frontends of the engine's simulation: what they ask, and what they must be answered."""

from dataclasses import dataclass, field

from shared.ids import SessionId, TurnId
from shared.messages import FinishReason, SamplingParams, TurnDelta, TurnEnd

END_TOKEN = 0
VOCABULARY = 23


def next_token(tokens: list[int]) -> int:
    """The sampler: a function of everything before, so that no undisturbed run is needed."""
    return hash(tuple(tokens)) % VOCABULARY


def reference(
    prompt: list[int], sampling: SamplingParams, tokens_max: int
) -> tuple[list[int], FinishReason]:
    """What a turn must generate, and why it ends."""
    tokens = list(prompt)
    while True:
        tokens.append(next_token(tokens))
        generated = tokens[len(prompt) :]
        if len(generated) > sampling.min_tokens or not sampling.min_tokens:
            if tokens[-1] == END_TOKEN and not sampling.ignore_eos:
                return generated, "stop"
            if tokens[-1] in sampling.stop_token_ids:
                return generated, "stop"
        if len(generated) >= sampling.max_tokens or len(tokens) >= tokens_max:
            return generated, "length"


@dataclass
class ClientTurn:
    """A turn as its frontend sees it.

    Attributes:
        expected, expected_finish: of an undisturbed run.
        ended: how each attempt that was submitted ended.
    """

    turn_id: TurnId
    session_id: SessionId
    prompt: list[int]
    sampling: SamplingParams
    priority: int
    expected: list[int]
    expected_finish: FinishReason
    attempt: int = 1
    got: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    is_cancelled: bool = False
    ended: dict[int, FinishReason] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.finish is not None or self.is_cancelled

    def on_delta(self, delta: TurnDelta, block_tokens: int) -> None:
        """New tokens must continue the old ones and be those of the reference."""
        assert delta.attempt not in self.ended, "a delta after its attempt's end"
        if delta.attempt < self.attempt or self.is_cancelled:
            return
        assert self.finish is None, "a delta after the last"
        if delta.finish == "error":
            assert self.expected_finish == "error" and delta.code == "context_length_exceeded"
            self.finish = "error"
            return
        assert delta.index == len(self.got), "a gap or a repeat"
        self.got += delta.tokens
        assert self.got == self.expected[: len(self.got)], "other tokens than undisturbed"
        if delta.index == 0:
            self._check_first(delta, block_tokens)
        self.finish = delta.finish
        if self.finish is not None:
            assert self.got == self.expected and self.finish == self.expected_finish

    def on_end(self, end: TurnEnd) -> None:
        """An attempt is over, once."""
        assert end.attempt not in self.ended, "an attempt ended twice"
        self.ended[end.attempt] = end.reason

    def check_over(self) -> None:
        """At the end, every attempt has ended and the last one as it should."""
        assert sorted(self.ended) == list(range(1, self.attempt + 1)), "an attempt never ended"
        assert self.is_over
        assert self.is_cancelled or self.ended[self.attempt] == self.finish

    def _check_first(self, delta: TurnDelta, block_tokens: int) -> None:
        cached = delta.cached_tokens
        assert cached is not None and 0 <= cached < len(self.prompt)
        if self.sampling.prompt_logprobs is not None:
            assert cached == 0
            assert [entry.token for entry in delta.prompt_logprobs or []] == self.prompt
