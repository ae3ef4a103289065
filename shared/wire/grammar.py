"""Grammars that replies are held to, as llguidance writes them: compiled and walked with limits.

A grammar comes from a stranger. Its size and what it may cost are bounded wherever it is read: at
the edge, and again by workers.

Source: llguidance, https://github.com/guidance-ai/llguidance: it compiles next to nothing
beforehand and finds the tokens that may come next as they are asked for, in some 10 us, so that a
schema that is used once costs as little as one that is used always; and it needs nothing but
itself, so that frontends can use it, too.
"""

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from shared.wire.sampling import GRAMMAR_BYTES_MAX

REASON_CHARS_MAX = 400
_END = 256


def limits() -> LLParserLimits:
    """Of one grammar. What they leave a single mask is a third of a second, at worst."""
    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=10_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def matcher_of(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """What walks a grammar along the tokens of a vocabulary; an error is in it."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits())


def flaw_of(grammar: str, tokenizer: LLTokenizer) -> str:
    """Why a grammar cannot be used; empty if it can. May take a second, and recurses as deep as the
    grammar is long: in `DeepThreads` alone.
    """
    return compiled(grammar, tokenizer)[1]


def compiled(grammar: str, tokenizer: LLTokenizer) -> tuple[LLMatcher | None, str]:
    """What walks a grammar, at its beginning; or None, and why it cannot be used. As `flaw_of`."""
    num_bytes = len(grammar.encode())
    if num_bytes > GRAMMAR_BYTES_MAX:
        return None, f"it takes {num_bytes} bytes; at most {GRAMMAR_BYTES_MAX} are allowed"
    matcher = matcher_of(grammar, tokenizer)
    if not matcher.is_error():
        # What is too much shows in the first token, or in going on behind it.
        allowed = tokens_in(matcher.compute_bitmask())
        if len(allowed):
            matcher.consume_token(int(allowed[0]))
    if reason := reason_of(matcher):
        return None, reason
    matcher.reset()
    return matcher, ""


def tokens_in(mask: bytes) -> npt.NDArray[np.intp]:
    """Tokens that a mask allows, in order.

    >>> tokens_in(bytes([0b101, 0b1])).tolist()
    [0, 2, 8]
    """
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))


def reason_of(matcher: LLMatcher) -> str:
    """The error that a matcher is in; empty if it is in none."""
    if not matcher.is_error():
        return ""
    reason = matcher.get_error().removesuffix("<non-verbose/>").strip()
    return reason[:REASON_CHARS_MAX] or "it cannot be followed"


class _Bytes:
    """A vocabulary of the 256 bytes and an end."""

    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def byte_tokenizer() -> LLTokenizer:
    """To check a grammar without any model."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))
