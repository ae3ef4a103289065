"""Text from tokens: no broken characters, exact stop strings, the same text as decoding at once."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.frontend.core.detokenizer import Detokenizer


def decode_bytes(tokens: Sequence[int]) -> str:
    """Byte-level: token n is byte n."""
    return bytes(tokens).decode("utf-8", "replace")


PIECES = ["\u2581Hello", "\u2581wor", "ld", "!", "\u2581", "\u2581a", "\u4f60"]


def decode_pieces(tokens: Sequence[int]) -> str:
    """Sentencepiece-like: a space at the very start of what is decoded is dropped."""
    return "".join(PIECES[t] for t in tokens).replace("\u2581", " ").removeprefix(" ")


def chunked(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(tokens[at : at + size])
        at += size
    return [*chunks, tokens[at:]]


@given(st.text(max_size=40), st.lists(st.integers(1, 5), max_size=20))
@settings(max_examples=150, deadline=None)
def test_text_comes_whole_and_never_split(text: str, sizes: list[int]) -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.feed(chunk) for chunk in chunked(list(text.encode()), sizes)]
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces) or "\ufffd" in text
    assert "".join(pieces) + detokenizer.finish() == text


@given(st.binary(max_size=60))
@example(b"\x80" * 9 + "\u4f60".encode())
@example(b"\xf0\x90\x80\xc0\x80\x80")
@settings(max_examples=200, deadline=None)
def test_broken_bytes_read_as_if_decoded_at_once(data: bytes) -> None:
    detokenizer = Detokenizer(decode_bytes)
    text = "".join(detokenizer.feed([byte]) for byte in data) + detokenizer.finish()
    assert text == data.decode("utf-8", "replace")


def test_broken_bytes_do_not_pile_up() -> None:
    longest = 0

    def decode(tokens: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return decode_bytes(tokens)

    Detokenizer(decode).feed([0x80] * 1000)
    assert longest < 40


@given(
    st.lists(st.integers(0, len(PIECES) - 1), max_size=20),
    st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_spaces_survive_after_a_prompt(reply: list[int], prompt: list[int]) -> None:
    detokenizer = Detokenizer(decode_pieces, prompt)
    text = "".join(detokenizer.feed([token]) for token in reply) + detokenizer.finish()
    if decode_pieces(prompt[-5:]):
        whole, before = decode_pieces([*prompt, *reply]), decode_pieces(prompt)
        assert whole == before + text


@given(
    st.text(alphabet="ab\u00e9", max_size=30),
    st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.integers(1, 4), max_size=20),
)
@settings(max_examples=250, deadline=None)
def test_stop_strings_cut_exactly(
    text: str, stops: list[str], keep: bool, sizes: list[int]
) -> None:
    detokenizer = Detokenizer(decode_bytes, stop=stops, keep_stop=keep)
    data = list(text.encode())
    shown = "".join(detokenizer.feed(chunk) for chunk in chunked(data, sizes))
    shown += detokenizer.finish()
    # The first stop is the one that is complete first; of those, the one that starts first.
    ends = {text.find(s) + len(s) for s in stops if s in text}
    if not ends:
        assert shown == text
        assert not detokenizer.stopped
        assert detokenizer.whole_tokens() == (len(data), text)
        return
    end = min(ends)
    start = min(end - len(s) for s in stops if text[:end].endswith(s))
    assert detokenizer.stopped
    assert shown == text[: end if keep else start]
    num, kept = detokenizer.whole_tokens()
    assert bytes(data[:num]).decode() == kept
    assert shown.startswith(kept) and len(shown) == len(kept)


def test_a_stop_within_a_token_leaves_the_token_out() -> None:
    pieces = ["ab", "cST", "OPd"]
    detokenizer = Detokenizer(lambda ts: "".join(pieces[t] for t in ts), stop=["STOP"])
    assert detokenizer.feed([0]) == "ab"
    assert detokenizer.feed([1]) == "c"
    assert detokenizer.feed([2]) == ""
    assert detokenizer.stopped
    assert detokenizer.whole_tokens() == (1, "ab")
    assert detokenizer.num_tokens_released == 2


@pytest.mark.parametrize(("stop_after", "shown"), [(0, "a"), (1, "a"), (2, "aba"), (4, "abab")])
def test_stop_strings_wait_for_min_tokens(stop_after: int, shown: str) -> None:
    detokenizer = Detokenizer(decode_bytes, stop=["b"], stop_after=stop_after)
    assert detokenizer.feed(list(b"abab")) == shown
