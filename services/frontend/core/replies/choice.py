"""One choice of a reply: the tokens of one turn become the pieces that its client sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.frontend.core.detokenizer import Decode, Detokenizer
from services.frontend.core.turns.turns import Deliver
from shared.wire.messages import KvPlace, TokenLogprobs

PublicFinish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one delta adds to a choice.

    Attributes:
        logprobs: of tokens whose text is out by now, each with where its text starts.
        cancel: the worker goes on, but the reply is complete: stop it.
        tokens: generated since the last piece, shown or not, an end token included.
        is_cut: the reply ends, and the model did not end it.
    """

    index: int
    text: str
    finish: PublicFinish | None = None
    logprobs: list[tuple[TokenLogprobs, int]] = field(default_factory=list)
    cancel: bool = False
    tokens: Sequence[int] = ()
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """How tokens become the visible reply.

    Attributes:
        keep_stop: show the stop string or stop token that ended the reply.
        stop_token_ids: the request's own, shown with `keep_stop` (the model's end never is).
        discard: the reply is not wanted, only what came with the prompt.
    """

    stop: Sequence[str] = ()
    keep_stop: bool = False
    stop_token_ids: Sequence[int] = ()
    min_tokens: int = 0
    discard: bool = False


class Choice:
    """Attributes:
    num_completion_tokens: generated tokens up to the end of the reply, an end token included.
    num_generated: all tokens that came, those behind a stop string with them.
    prompt_tokens: as its worker counts them, if not as they were sent.
    cached_tokens: prompt tokens that were not computed, once known.
    cached_in: where those were when the turn came.
    prompt_logprobs: of the prompt's tokens, once known.
    finish: how the reply ended.
    """

    def __init__(self, index: int, decode: Decode, prompt: Sequence[int], rules: TextRules) -> None:
        self.index = index
        self._rules = rules
        self._text = Detokenizer(
            decode, prompt, rules.stop, keep_stop=rules.keep_stop, stop_after=rules.min_tokens
        )
        self._logprobs: list[TokenLogprobs] = []
        self._num_logprobs_out = 0
        self._shown: list[int] = []
        self.num_completion_tokens = 0
        self.num_generated = 0
        self.prompt_tokens: int | None = None
        self.cached_tokens = 0
        self.cached_in: Mapping[KvPlace, int] = {}
        self.prompt_logprobs: list[TokenLogprobs] | None = None
        self.finish: PublicFinish | None = None

    def on_deliver(self, event: Deliver) -> Piece:
        """Take a delta of the turn, before the reply's end."""
        assert self.finish is None, "tokens after the end"
        self.num_generated += len(event.tokens)
        if event.cached_tokens is not None and not self.cached_tokens:
            self.cached_tokens, self.cached_in = event.cached_tokens, event.cached_in
        if event.prompt_tokens is not None:
            self.prompt_tokens = event.prompt_tokens
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = event.prompt_logprobs
        if self._rules.discard:
            self.finish = "length"
            return Piece(self.index, "", "length", [], event.finish is None)
        shown = event.tokens[:-1] if self._ends_hidden(event) else event.tokens
        num_fed = self._text.num_fed
        text = self._text.feed(shown)
        if event.finish is not None:
            text += self._text.finish()
        num_taken = self._text.num_fed - num_fed
        self._shown += shown[:num_taken]
        if event.logprobs is not None:
            self._logprobs += event.logprobs[:num_taken]
        tokens = event.tokens
        if self._text.stopped:
            tokens = event.tokens[:num_taken]
            self.finish = "stop"
        elif event.finish is not None:
            self.finish = "stop" if event.finish == "stop" else "length"
        self.num_completion_tokens += len(tokens)
        cancel = self.finish is not None and event.finish is None
        is_cut = self.finish == "length" or self._text.stopped
        return Piece(self.index, text, self.finish, self._take_logprobs(), cancel, tokens, is_cut)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._text.stopped_by

    def kept(self) -> tuple[list[int], str]:
        """Tokens that lie wholly in the visible reply, and exactly their text."""
        num, text = self._text.whole_tokens()
        return self._shown[:num], text

    def _ends_hidden(self, event: Deliver) -> bool:
        """Whether the delta's last token is the end of the turn and not part of the text."""
        if event.finish != "stop" or not event.tokens:
            return False
        return not (self._rules.keep_stop and event.tokens[-1] in self._rules.stop_token_ids)

    def _take_logprobs(self) -> list[tuple[TokenLogprobs, int]]:
        if not self._logprobs:
            return []
        whole = self.finish is not None and not self._text.stopped
        end = len(self._logprobs) if whole else self._text.num_tokens_released
        begin, self._num_logprobs_out = self._num_logprobs_out, max(end, self._num_logprobs_out)
        entries = self._logprobs[begin:end]
        return list(zip(entries, self._text.starts[begin:end], strict=False))
