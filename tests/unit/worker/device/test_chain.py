"""The words that pages of emulated models hold: each follows from all tokens before it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.worker.device.chain import FACTOR, are_words, next_words, words_of

VOCAB = 300
tokens_of = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=200)


@given(tokens=tokens_of, before=st.integers(0, 2**32 - 1), cut=st.integers(0, 200))
def test_they_are_the_same_however_they_are_computed(
    tokens: list[int], before: int, cut: int
) -> None:
    word, wanted = before, []
    for token in tokens:
        word = (FACTOR * word + token + 1) % 2**32
        wanted.append(word)
    given = np.array(tokens, np.int32)
    words = words_of(before, given)
    assert words.tolist() == wanted
    if 0 < cut < len(tokens):
        assert words_of(wanted[cut - 1], given[cut:]).tolist() == wanted[cut:]
    last = np.array([before], np.uint32)
    assert next_words(last, given[:1]).tolist() == wanted[:1]
    assert are_words(np.stack([words, words]), before, VOCAB)


@given(
    tokens=tokens_of,
    layer=st.integers(0, 2),
    at=st.integers(0, 199),
    more=st.integers(VOCAB, 2**32 - VOCAB),
)
def test_one_that_is_another_is_found(tokens: list[int], layer: int, at: int, more: int) -> None:
    words = np.stack([words_of(7, np.array(tokens, np.int32))] * 3)
    words[layer : layer + 1, at % len(tokens)] += np.uint32(more)  # a scalar would warn of overflow
    assert not are_words(words, 7, VOCAB)
