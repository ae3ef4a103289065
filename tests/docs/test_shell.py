"""Shell text is cut as a shell cuts it."""

import pytest

from tests.docs.shell import Command, commands


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c # d\n\ne", [["a", "b", "c"], ["e"]]),
        ("a \\\n  --b 'c d' \"e $F\"", [["a", "--b", "c d", "e $F"]]),
        ("a && b | c & d; e || f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a 'x\ny' z", [["a", "x\ny", "z"]]),
        ("a x#y 'q'r", [["a", "x#y", "qr"]]),
        ("a > file < other >> third", [["a"]]),
        ("a \"b $(c 'd)') e\"", [["a", "b $(c 'd)') e"], ["c", "d)"]]),
        ('a "\\"b\\""', [["a", '"b"']]),
    ],
)
def test_words(text: str, expected: list[list[str]]) -> None:
    assert [command.words for command in commands(text)] == expected


def test_settings_stand_before_a_command_or_alone() -> None:
    assert commands("A=1 B='2 3' run C=4\nD=$(make it)") == [
        Command({"A": "1", "B": "2 3"}, ["run", "C=4"]),
        Command({"D": "$(make it)"}, []),
        Command({}, ["make", "it"]),
    ]


def test_a_here_document_belongs_to_its_command() -> None:
    assert commands("cat > f <<'END'\nx 'y\nEND\nnext") == [
        Command({}, ["cat"], "x 'y\n", into="f"),
        Command({}, ["next"]),
    ]


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a $(b"])
def test_what_is_not_closed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not closed|not found"):
        commands(text)
