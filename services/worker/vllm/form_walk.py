"""Walks one reply along its form, for vLLM: masks, and steps that may be taken back."""

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from services.worker.core.vllm.forms import Form
from services.worker.device.grammar.json_keys import KeyTracker
from services.worker.device.grammar.unique_keys import UniqueKeys
from shared.wire.grammar import compiled, reason_of

Words = npt.NDArray[np.int32]


class FormWalk:
    """Stands behind the tokens that its turn had generated before.

    Args:
        unique: keeps keys from repeating; None: the form has no open ones.

    Raises:
        ValueError: the grammar cannot be used, or those tokens are not within it.
    """

    def __init__(self, form: Form, tokenizer: LLTokenizer, unique: UniqueKeys | None) -> None:
        matcher, flaw = compiled(form.grammar, tokenizer)
        if matcher is None:
            raise ValueError(flaw)
        self._matcher: LLMatcher = matcher
        self._unique = unique
        self._marks = [each.encode() for each in form.json_after]
        self._keys = KeyTracker(self._marks)
        self._end = tokenizer.eos_token
        self._tokens: list[int] = []  # taken, with ends behind the grammar's own
        self._num_walked = 0  # of them, by the matcher
        self._num_read = 0  # by `_keys`
        self._is_stuck = False
        if not self.accept(form.generated):
            raise ValueError("the tokens that were generated before are not within it")

    def accept(self, tokens: list[int]) -> bool:
        """Take tokens; whether all of them are within the form."""
        if self._is_stuck:
            return False
        for token in tokens:
            if not self._is_over:
                if not self._matcher.consume_token(token):
                    return False
                self._num_walked += 1
            self._tokens.append(token)
        return True

    def num_allowed(self, tokens: list[int]) -> int:
        """How many of these might come next; none is taken."""
        return 0 if self._is_over or self._is_stuck else self._matcher.validate_tokens(tokens)

    def take_back(self, num_tokens: int) -> None:
        """The last tokens were not kept."""
        num_kept = len(self._tokens) - num_tokens
        if self._num_walked > num_kept:
            self._matcher.rollback(self._num_walked - num_kept)
            self._num_walked = num_kept
        if self._num_read > num_kept:
            self._keys, self._num_read = KeyTracker(self._marks), 0
        del self._tokens[num_kept:]
        self._is_stuck = False

    def fill(self, row: Words) -> None:
        """Write which tokens may come next. Where none may, the reply's end is let through: taking
        it fails.

        Args:
            row: int32 ``[ceil(vocab / 32)]``, one bit a token.
        """
        words: Words = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        if self._unique is not None and not reason_of(self._matcher):
            for token in self._tokens[self._num_read :]:
                self._unique.feed(self._keys, token)
            self._num_read = len(self._tokens)
            words = self._unique.filtered(self._keys, self._matcher, words)
        row[:] = 0
        if reason_of(self._matcher) or not words.any():
            self._is_stuck = True
            row.view(np.uint32)[self._end >> 5] = np.uint32(1 << (self._end & 31))
        else:
            row[: len(words)] = words[: len(row)]

    @property
    def _is_over(self) -> bool:
        """The grammar has ended: what follows is more ends."""
        return self._matcher.is_stopped() and not self._matcher.is_error()
