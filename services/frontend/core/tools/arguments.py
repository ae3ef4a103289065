"""A call's arguments as the JSON that clients parse, from what a model writes as it comes.

Characters that JSON has to escape are escaped. What is no JSON ends the arguments before it: then
they are closed, and the call is not to be carried out. A member is handed on once its value has
begun, so that they can be closed anywhere.
"""

import json
import re
from enum import Enum, auto

DEPTH_MAX = 256  # deeper ones are more than parsers take
SPACE = " \t\r\n"
ESCAPES = '"\\/bfnrt'
HEX = "0123456789abcdefABCDEF"
LITERAL = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LITERAL_CHARS = frozenset("truefalsn0123456789+-.E")
LITERAL_CHARS_MAX = 1024


class _Next(Enum):
    """What may come where no string and no word is open."""

    VALUE = auto()
    VALUE_OR_END = auto()  # of a list
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    NOTHING = auto()


class ArgumentsText:
    """One JSON value, a character at a time.

    Attributes:
        is_over: it has ended; nothing more may be taken.
        is_broken: by what is no JSON; it was closed.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.is_broken = False
        self._open: list[str] = []  # brackets
        self._next = _Next.VALUE
        self._held = ""  # what is handed on with the next value
        self._in_string = False
        self._is_key = False
        self._escape = ""  # that is not whole
        self._word = ""  # a number, true, false or null, as far as it came

    def take(self, char: str) -> str:
        """What of it can be handed on behind another character."""
        if self.is_over:
            return ""
        if self._in_string:
            text = self._take_in_string(char)
            if not self._is_key:
                return text
            self._held += text
            return ""
        if self._word or (char in LITERAL_CHARS and self._may_begin_value()):
            if char in LITERAL_CHARS and len(self._word) < LITERAL_CHARS_MAX:
                self._word += char
                return ""
            ended = self._end_word()
            return ended + self.take(char)
        return self._take_structure(char)

    def close(self) -> str:
        """What is missing to make JSON of what was handed on. It is broken if anything is."""
        if self.is_over:
            return ""
        text = self._end_word() if self._word else ""
        return text + self._break()

    def _take_structure(self, char: str) -> str:
        if char in SPACE:
            self._held += char
        elif char == '"' and self._next in (_Next.KEY, _Next.KEY_OR_END):
            self._in_string = self._is_key = True
            self._held += char
        elif char == '"' and self._may_begin_value():
            self._in_string, self._is_key = True, False
            return self._flush(char)
        elif char in "{[" and self._may_begin_value() and len(self._open) < DEPTH_MAX:
            self._open.append(char)
            self._next = _Next.KEY_OR_END if char == "{" else _Next.VALUE_OR_END
            return self._flush(char)
        elif char == ":" and self._next is _Next.COLON:
            self._held += char
            self._next = _Next.VALUE
        elif char == "," and self._next is _Next.COMMA_OR_END:
            self._held += char
            self._next = _Next.KEY if self._open[-1] == "{" else _Next.VALUE
        elif char in "}]" and self._may_end(char):
            self._open.pop()
            self._held = self._held.replace(",", "")  # one that nothing came behind
            text = self._flush(char)
            self._end_value()
            return text
        else:
            return self._break()
        return ""

    def _may_begin_value(self) -> bool:
        return self._next in (_Next.VALUE, _Next.VALUE_OR_END)

    def _may_end(self, char: str) -> bool:
        if not self._open or self._open[-1] != ("{" if char == "}" else "["):
            return False
        return self._next is not _Next.COLON and (self._next is not _Next.VALUE or char == "]")

    def _take_in_string(self, char: str) -> str:
        if self._escape:
            return self._take_escape(char)
        if char == "\\":
            self._escape = char
            return ""
        if char == '"':
            self._in_string = False
            if self._is_key:
                self._next = _Next.COLON
            else:
                self._end_value()
            return char
        return json.dumps(char)[1:-1] if char < " " else char

    def _take_escape(self, char: str) -> str:
        """A backslash before what it does not escape is one that was to be escaped."""
        whole = self._escape + char
        if (len(whole) == 2 and char == "u") or (len(whole) in (3, 4, 5) and char in HEX):
            self._escape = whole
            return ""
        begun, self._escape = self._escape, ""
        if (len(whole) == 2 and char in ESCAPES) or (len(whole) == 6 and char in HEX):
            return whole
        return "\\" + begun + self._take_in_string(char)

    def _end_word(self) -> str:
        word, self._word = self._word, ""
        if not LITERAL.fullmatch(word):
            return self._break()
        text = self._flush(word)
        self._end_value()
        return text

    def _end_value(self) -> None:
        self._next = _Next.COMMA_OR_END if self._open else _Next.NOTHING
        self.is_over = not self._open

    def _flush(self, text: str) -> str:
        held, self._held = self._held, ""
        return held + text

    def _break(self) -> str:
        self.is_over = self.is_broken = True
        quote = '"' if self._in_string and not self._is_key else ""
        return quote + "".join("}" if each == "{" else "]" for each in reversed(self._open))


def as_json(written: str) -> str | None:
    r"""A value that a model wrote, as JSON; None: it is none.

    >>> as_json('"a\tb"'), as_json("[1,]"), as_json("7 "), as_json("[1")
    ('"a\\tb"', '[1]', '7', None)
    """
    text = ArgumentsText()
    made = "".join(map(text.take, written.strip(SPACE) + " "))
    return None if text.is_broken or not text.is_over else made
