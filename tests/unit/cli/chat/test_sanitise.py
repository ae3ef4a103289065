"""What a model may make a terminal do: nothing."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from cli.chat.sanitise import one_line, visible

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # surrogates and controls too
BIDI = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_harmless(character: str) -> bool:
    return unicodedata.category(character) not in {"Cc", "Cs"} and character not in BIDI


@given(ANY_TEXT)
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = visible(text)
    assert all(is_harmless(character) or character in "\n\t" for character in shown)
    shown.encode()
    assert all(is_harmless(character) for character in one_line(text))


@given(st.text().filter(lambda text: all(is_harmless(c) or c in "\n\t" for c in text)))
def test_plain_text_passes(text: str) -> None:
    assert visible(text) == text


@given(ANY_TEXT, ANY_TEXT)
def test_a_cut_anywhere_changes_nothing(start: str, end: str) -> None:
    assert visible(start) + visible(end) == visible(start + end)


def test_what_is_hidden_can_be_seen() -> None:
    assert visible("\x1b]52;c;aGk=\x07 \x9b2J \x7f") == "␛]52;c;aGk=␇ \ufffd2J ␡"
    assert visible("a\r\nb\rc") == "a\nbc"
    assert visible("x\u202ey") == "xy"


def test_a_line_has_a_limit() -> None:
    assert one_line("a" * 600, 10) == "a" * 9 + "…"
