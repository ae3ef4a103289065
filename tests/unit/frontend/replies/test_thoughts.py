"""Thoughts told apart from what is said, however a reply is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.core.replies.thoughts import FAMILIES, Thought, ThoughtReader, thinking_of
from services.frontend.core.tools.families import Said

QWEN, ALWAYS = FAMILIES["qwen3"], FAMILIES["deepseek_r1"]


def read(pieces: list[str], *, is_within: bool = False) -> tuple[str, str]:
    """What is thought, and what is said, of a reply that comes in these pieces."""
    reader = ThoughtReader(QWEN, is_within=is_within)
    told = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
    assert all(event.text for event in told)
    thoughts = "".join(event.text for event in told if isinstance(event, Thought))
    assert told == sorted(told, key=lambda event: isinstance(event, Said)), "thoughts come first"
    return thoughts, "".join(event.text for event in told if isinstance(event, Said))


REPLIES = [
    ("<think>\nhm\n\nso\n</think>\n\nYes.\n", False, ("hm\n\nso", "Yes.\n")),
    ("\n <think>hm</think>Yes <think>no</think>", False, ("hm", "Yes <think>no</think>")),
    ("<think>\n\n</think>\n\nYes", False, ("", "Yes")),
    ("Yes <think>", False, ("", "Yes <think>")),
    (" <b>", False, ("", " <b>")),
    ("", False, ("", "")),
    ("  \n", False, ("", "  \n")),
    ("<thin", False, ("", "<thin")),
    ("<think>cut o", False, ("cut o", "")),
    ("<think>cut </thi", False, ("cut </thi", "")),
    ("<think>\n", False, ("", "")),
    ("hm\n</think>\nYes", True, ("hm", "Yes")),
    ("\n\nhm</think>", True, ("hm", "")),
    ("<think>\nhm</think>Yes", True, ("hm", "Yes")),
    ("<thx>hm</think>Yes", True, ("<thx>hm", "Yes")),
    ("</think>Yes", True, ("", "Yes")),
    ("never ends\n", True, ("never ends", "")),
    ("<thi", True, ("<thi", "")),
    ("a </ b </think >c</think>d", True, ("a </ b </think >c", "d")),
]


@pytest.mark.parametrize(("reply", "is_within", "told"), REPLIES)
def test_replies(reply: str, is_within: bool, told: tuple[str, str]) -> None:
    assert read([reply], is_within=is_within) == told
    assert read(list(reply), is_within=is_within) == told


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "</", "th"])),
    st.booleans(),
    st.data(),
)
def test_pieces_do_not_matter(parts: list[str], is_within: bool, data: st.DataObject) -> None:
    reply = "".join(parts)
    whole = read([reply], is_within=is_within)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(reply)))))
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    assert read(pieces, is_within=is_within) == whole
    if "<think>" not in reply and not is_within:
        assert whole == ("", reply)


def test_whether_a_reply_begins_in_thoughts() -> None:
    assert QWEN.begins_within("<|assistant|>\n<think>\n")
    assert not QWEN.begins_within("<think>\n\n</think>\n\n")
    assert not QWEN.begins_within("<think> is a mark")
    assert ALWAYS.begins_within("<|assistant|>") and not ALWAYS.begins_within("<think></think>\n")
    assert thinking_of("{{ '[/THINK]' }}") is FAMILIES["mistral"]
    assert thinking_of("{{ content.split('</think>') }}") is QWEN
