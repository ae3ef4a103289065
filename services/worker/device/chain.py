"""What the pages of an emulated model hold: at each token a word that follows from all before it.

A model's KV at a token depends on every token so far, and so does this: ``word = A * last + token +
1`` modulo 2**32. So a page that belongs elsewhere, in place or in time, does not continue the one
before it, and can be distinguished from the right one.
"""

import numpy as np
import numpy.typing as npt

from services.worker.core.step import Ints

Words = npt.NDArray[np.uint32]

FACTOR = 0x9E3779B1  # odd, so that it can be undone
_UNDONE = pow(FACTOR, -1, 1 << 32)


def next_words(before: Words, tokens: Ints) -> Words:
    """uint32 [n]: of one more token behind each of these words."""
    return before * np.uint32(FACTOR) + tokens.astype(np.uint32) + np.uint32(1)


def words_of(before: int, tokens: Ints) -> Words:
    """uint32 [n]: of tokens that follow each other, behind a word.

    >>> words = words_of(0, np.array([5, 7], np.int32))
    >>> words.tolist() == [6, (6 * FACTOR + 8) % 2**32]
    True
    """
    # Undone, each word is the one before and something of its own token: then they are sums.
    own = (tokens.astype(np.uint32) + np.uint32(1)) * _powers(_UNDONE, len(tokens))
    sums = np.uint32(before) + np.cumsum(own, dtype=np.uint32)
    return sums * _powers(FACTOR, len(tokens))


def are_words(words: Words, before: int, vocab_size: int) -> bool:
    """Whether they follow each other, and the first one that word.

    Args:
        words: uint32 [layers, n]: the same in each layer.
    """
    lasts = np.empty_like(words[0])
    lasts[0], lasts[1:] = before, words[0, :-1]
    tokens = words[0] - lasts * np.uint32(FACTOR) - np.uint32(1)
    return bool((tokens < vocab_size).all() and (words == words[0]).all())


def _powers(factor: int, num: int) -> Words:
    """uint32 [num]: of `factor`, from the first on."""
    return np.cumprod(np.full(num, factor, np.uint32), dtype=np.uint32)
