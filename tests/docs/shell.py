"""Shell text as commands: as much of the grammar as documentation needs, and no more."""

from collections.abc import Iterator
from dataclasses import dataclass, field

OPERATORS = ("&&", "||", ";;", "<<", ">>", ";", "&", "|", "(", ")", "\n", "<", ">")
ENDS = {"&&", "||", ";", "&", "|", "(", ")", "\n"}


@dataclass(slots=True)
class Command:
    """One simple command.

    Attributes:
        settings: assignments before it, in order.
        words: without quotes; a ``$(...)`` stands in its word as it was written.
        stdin: of a here-document.
        into: the file that it writes; empty: none.
    """

    settings: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    stdin: str = ""
    into: str = ""

    @property
    def name(self) -> str:
        """The program; empty where only variables are set."""
        return self.words[0] if self.words else ""


def commands(text: str) -> list[Command]:
    """Every command of a text, those in ``$(...)`` behind the one that they are in.

    Raises:
        ValueError: a quote or bracket is not closed.
    """
    reader = _Reader(text)
    found: list[Command] = []
    current = Command()
    for kind, value in reader.tokens():
        if kind == "operator" and value in ENDS:
            found.append(current)
            current = Command()
        elif kind == "here":
            current.stdin = value
        elif kind == "into":
            current.into = value
        elif kind == "word":
            name, is_assignment, rest = value.partition("=")
            if is_assignment and not current.words and name.isidentifier():
                current.settings[name] = rest
            else:
                current.words.append(value)
    found.append(current)
    whole = [each for each in found if each.words or each.settings]
    return whole + [inner for text in reader.inner for inner in commands(text)]


class _Reader:
    """Cuts a text into words and operators."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.inner: list[str] = []

    def tokens(self) -> Iterator[tuple[str, str]]:
        while self.at < len(self.text):
            rest = self.text[self.at :]
            if rest[0] in " \t":
                self.at += 1
            elif rest.startswith("\\\n"):
                self.at += 2
            elif rest[0] == "#":
                self._to(rest.find("\n"))
            elif operator := next((each for each in OPERATORS if rest.startswith(each)), None):
                self.at += len(operator)
                if operator == "<<":
                    yield "here", self._here_document()
                elif operator in ("<", ">", ">>"):
                    self._skip_blanks()
                    file = self._word()
                    if operator != "<":
                        yield "into", file
                else:
                    yield "operator", operator
            else:
                yield "word", self._word()

    def _to(self, offset: int) -> None:
        self.at = len(self.text) if offset < 0 else self.at + offset

    def _skip_blanks(self) -> None:
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1

    def _here_document(self) -> str:
        """What follows the line, up to the word that ends it; both leave the text."""
        end = self._word()
        begin = self.text.index("\n", self.at) + 1
        stop = self.text.index(f"\n{end}\n", begin - 1) + 1
        document = self.text[begin:stop]
        self.text = self.text[:begin] + self.text[stop + len(end) + 1 :]
        return document

    def _word(self) -> str:
        word = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t" or any(self.text.startswith(each, self.at) for each in OPERATORS):
                break
            if char == "'":
                stop = self.text.index("'", self.at + 1)
                word += self.text[self.at + 1 : stop]
                self.at = stop + 1
            elif char == '"':
                word += self._double_quoted()
            elif self.text.startswith("$(", self.at):
                word += self._substitution()
            elif char == "\\":
                word += self.text[self.at + 1].replace("\n", "")
                self.at += 2
            else:
                word += char
                self.at += 1
        return word

    def _double_quoted(self) -> str:
        word = ""
        self.at += 1
        while self.text[self.at : self.at + 1] != '"':
            if self.at >= len(self.text):
                raise ValueError('a " is not closed')
            if self.text.startswith("$(", self.at):
                word += self._substitution()
            elif self.text[self.at] == "\\" and self.text[self.at + 1] in '"\\$`\n':
                word += self.text[self.at + 1].replace("\n", "")
                self.at += 2
            else:
                word += self.text[self.at]
                self.at += 1
        self.at += 1
        return word

    def _substitution(self) -> str:
        """``$(...)`` as it stands; what is in it is remembered."""
        begin, depth, quote = self.at, 0, ""
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == "(":
                depth += 1
            elif char == ")":
                depth -= 1
                if not depth:
                    self.inner.append(self.text[begin + 2 : self.at - 1])
                    return self.text[begin : self.at]
        raise ValueError("a $( is not closed")
