"""How deep in JSON a text is."""

from collections.abc import Iterable


class Nesting:
    """Fed with each character from an object's or list's first one on.

    Attributes:
        depth: of the brackets that are open.
        in_string: within quotation marks.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._is_escaped = False

    def take(self, char: str) -> None:
        """The next character."""
        if self.in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self.in_string = False
        elif char == '"':
            self.in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1

    def is_broken_by(self, char: str) -> bool:
        """Whether it is in no JSON: a mark of the model's, where a bracket was forgotten."""
        return char == "<" and not self.in_string

    def take_to_end(self, text: Iterable[str]) -> tuple[int, bool]:
        """How many characters there are up to where no bracket is open, or all, and whether that
        was met."""
        number = 0
        for number, char in enumerate(text, 1):
            if self.is_broken_by(char):
                return number - 1, True
            self.take(char)
            if not self.depth:
                return number, True
        return number, False
