r"""Custom tools, whose input is text of any form, for models that call functions with JSON.

Such a tool is a function with one argument, `input`. What is called is read as it comes.
"""

import json
from typing import Any

KEY = "input"
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def parameters_of(pattern: str | None = None) -> dict[str, Any]:
    """The function's schema.

    Args:
        pattern: an expression that all of the input has to match; None: any text.
    """
    text = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
    return {
        "type": "object",
        "properties": {KEY: text},
        "required": [KEY],
        "additionalProperties": False,
    }


def arguments_of(text: str) -> str:
    """A call's arguments, from its input.

    >>> arguments_of("ls -l")
    '{"input": "ls -l"}'
    """
    return json.dumps({KEY: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    r"""A call's input, from all its arguments: the text named `input`, the only text there is, or
    else what the model wrote.

    >>> input_of('{"input": "a\\nb"}'), input_of('{"patch": "x"}'), input_of('{"a": 1}')
    ('a\nb', 'x', '{"a": 1}')
    """
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    texts = [value] if isinstance(value, str) else []
    if isinstance(value, dict):
        texts = [value[KEY]] if KEY in value else list(value.values())
    only = texts[0] if len(texts) == 1 else None
    return _whole(only) if isinstance(only, str) else arguments


class InputReader:
    """The text of arguments that begin with `input`, as it comes; of others nothing."""

    def __init__(self) -> None:
        self._head = ""  # what stands before the text, until it has begun
        self._is_open = self._is_over = False
        self._escape = ""  # that is not whole

    def feed(self, arguments: str) -> str:
        r"""What of the text came with more of the arguments.

        >>> reader = InputReader()
        >>> [reader.feed(part) for part in ('{"inp', 'ut": "a', '\\', 'nb"', '}')]
        ['', 'a', '', '\nb', '']
        """
        text = []
        for char in arguments:
            if self._is_open:
                text.append(self._take(char))
            elif not self._is_over:
                self._begin(char)
        return "".join(text)

    def _begin(self, char: str) -> None:
        self._head += "" if char.isspace() else char
        start = f'{{"{KEY}":"'
        self._is_open = self._head == start
        self._is_over = not start.startswith(self._head)

    def _take(self, char: str) -> str:
        if self._escape:
            return self._take_escape(char)
        if char == "\\":
            self._escape = char
            return ""
        if char == '"':
            self._is_open, self._is_over = False, True
            return ""
        return char

    def _take_escape(self, char: str) -> str:
        self._escape += char
        whole = self._escape
        if len(whole) == 2 and char != "u":
            self._escape = ""
            return _ESCAPES.get(char, char)
        if len(whole) not in (6, 12):
            if len(whole) in (7, 8) and char != "\\u"[len(whole) - 7]:  # half a pair alone
                self._escape = ""
                return "\N{REPLACEMENT CHARACTER}" + self._again(whole[6:])
            return ""
        if len(whole) == 6 and whole[2:4].lower() in {"d8", "d9", "da", "db"}:
            return ""  # the first half of a pair
        self._escape = ""
        return _whole(json.loads(f'"{whole}"'))

    def _again(self, text: str) -> str:
        return "".join(map(self._take, text))


def _whole(text: str) -> str:
    """Without halves of surrogate pairs, which are no text."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
