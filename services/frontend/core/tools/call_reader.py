"""One call that is written as JSON, read as it comes."""

import json
from collections.abc import Collection, Iterable
from enum import Enum, auto
from itertools import groupby
from typing import Protocol

from services.frontend.core.tools.arguments import SPACE, ArgumentsText, as_json
from services.frontend.core.tools.families import Argued, Called, Event, Said

NAMES = ("name", "function")
ARGUMENTS = ("arguments", "parameters")
NOTHING = (Said(""), Argued(""))


class Reader(Protocol):
    """Reads from an object's brace to its end.

    Attributes:
        is_over: the object has ended; nothing more is taken.
        is_call: it calls a tool that there is.
        is_marked: the model says that it is a call.
    """

    is_over: bool
    is_call: bool
    is_marked: bool

    @property
    def is_broken(self) -> bool:
        """Whether its arguments were no JSON, and are closed before that."""
        ...

    def feed(self, text: str) -> tuple[int, list[Event]]:
        """How many characters belong to the object, and the events in them."""
        ...

    def finish(self) -> list[Event]:
        """The reply ended within the object."""
        ...


class ArgumentsReader:
    """An object of arguments, of a call whose name was reported."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_call = self.is_marked = True
        self._text = ArgumentsText()
        self._nesting = Nesting()

    @property
    def is_broken(self) -> bool:
        return self._text.is_broken

    def feed(self, text: str) -> tuple[int, list[Event]]:
        num, self.is_over = self._nesting.take_to_end(text)
        argued = "".join(map(self._text.take, text[:num]))
        return num, [Argued(argued + self._text.close() if self.is_over else argued)]

    def finish(self) -> list[Event]:
        return []


class _At(Enum):
    """What is read at the object's own level."""

    KEY = auto()  # a member's name, or what stands before it
    COLON = auto()
    VALUE = auto()


class CallReader:
    """An object that holds a tool's name and arguments. Arguments are handed on as they come once
    the name is known; until then all is kept back, because it may be no call.

    Args:
        names: of tools there are; what calls another one is text.
        before: what stands before the object, and is text if that is.
        is_marked: the model says that it is a call; else it is one only if it has arguments, since
            an answer in JSON may have a name, too.
    """

    def __init__(
        self, names: Collection[str], before: str = "", *, is_marked: bool = False
    ) -> None:
        self._names = names
        self.is_marked = is_marked
        self.is_broken = False
        self._name: str | None = None  # that it has, and was not reported yet
        self.is_over = False
        self.is_call = False
        self._is_text = False  # it calls nothing that there is
        self._raw = [before]
        self._nesting = Nesting()
        self._at = _At.KEY
        self._key = ""
        self._value: list[str] = []  # of the member that is read, as far as it is kept
        self._streamed: ArgumentsText | None = None  # that member's value, as it comes
        self._arguments: str | None = None  # that have come whole

    def feed(self, text: str) -> tuple[int, list[Event]]:
        events: list[Event] = []
        number = 0
        while number < len(text) and not self.is_over and not self._is_text:
            if self._nesting.is_broken_by(text[number]):
                self._end_member(events)
                self._end(events)
                break
            self._take(text[number], events)
            number += 1
        if self._is_text and not self.is_over:
            num, self.is_over = self._nesting.take_to_end(text[number:])
            events.append(Said(text[number : number + num]))
            number += num
        return number, joined(events)

    def finish(self) -> list[Event]:
        return [] if self.is_call else [Said("".join(self._raw))]

    def _take(self, char: str, events: list[Event]) -> None:
        nesting = self._nesting
        was_inside = nesting.in_string or nesting.depth > 1
        nesting.take(char)
        if not self.is_call:
            self._raw.append(char)
        if not nesting.depth:
            self._end_member(events)
            self._end(events)
        elif was_inside or nesting.in_string or nesting.depth > 1:
            self._add(char, events)
        elif char == "," and self._at is _At.VALUE:
            self._end_member(events)
        elif char == ":" and self._at is _At.COLON:
            self._at = _At.VALUE
        elif self._at is _At.VALUE:  # a number, a word, or space
            self._add(char, events)

    def _add(self, char: str, events: list[Event]) -> None:
        """A character of a member's name or value."""
        if self._at is _At.VALUE:
            if self._streamed is not None:
                events.append(Argued(self._streamed.take(char)))
                if self._nesting.depth == 1 and not self._nesting.in_string:
                    self._end_streamed(events)
            elif char == "{" and not self._value and self._takes_arguments and self._tell(events):
                self._streamed = ArgumentsText()
                events.append(Argued(self._streamed.take(char)))
            elif self._value or char not in SPACE:
                self._value.append(char)
            return
        self._value.append(char)
        if not self._nesting.in_string:
            self._key = _string("".join(self._value)) or ""
            self._value, self._at = [], _At.COLON

    @property
    def _takes_arguments(self) -> bool:
        return self._key in ARGUMENTS and self._arguments is None

    def _end_member(self, events: list[Event]) -> None:
        value, at = "".join(self._value).rstrip(SPACE), self._at
        if self._streamed is not None:  # it was broken off
            self._end_streamed(events)
        if at is _At.VALUE and self._takes_arguments:
            arguments = _as_object(value)
            self.is_broken |= arguments is None
            if self._tell(events):
                events.append(Argued(arguments or "{}"))
            self._arguments = arguments or "{}"
        elif at is _At.VALUE and self._key in NAMES and self._name is None:
            self._on_name(_string(value), events)
        self._value, self._key, self._at = [], "", _At.KEY

    def _end_streamed(self, events: list[Event]) -> None:
        assert self._streamed is not None
        events.append(Argued(self._streamed.close()))
        self.is_broken |= self._streamed.is_broken
        self._arguments, self._streamed = "", None

    def _on_name(self, name: str | None, events: list[Event]) -> None:
        if name is None or name not in self._names:
            self._is_text = True
            events.append(Said("".join(self._raw)))
            self._raw = []
            return
        self._name = name
        if self.is_marked or self._arguments is not None:
            self._tell(events)
            events.append(Argued(self._arguments or ""))

    def _tell(self, events: list[Event]) -> bool:
        """That it is a call, if its name is known; whether it is."""
        if self._name is not None and not self.is_call:
            self.is_call = True
            self._raw = []
            events.append(Called(self._name))
        return self.is_call

    def _end(self, events: list[Event]) -> None:
        self.is_over = True
        if not self.is_call:
            events.append(Said("".join(self._raw)))
        elif self._arguments is None:
            events.append(Argued("{}"))


def _string(written: str) -> str | None:
    r"""What a string's JSON says; None of anything else, and of what is no text (half a surrogate).

    >>> _string('"a"'), _string("7"), _string(r'"\ud83d"')
    ('a', None, None)
    """
    if not written.startswith('"'):
        return None
    try:
        value: str = json.loads(written)
        value.encode()
    except ValueError:
        return None
    return value


def _as_object(written: str) -> str | None:
    """Arguments as an object's JSON: some models write that as a string again, or nothing.
    None: they are no JSON.

    >>> _as_object('"{}"'), _as_object("null"), _as_object('""'), _as_object('"hello"')
    ('{}', '{}', '{}', '"hello"')
    """
    as_written = as_json(written)
    inner = written if (string := _string(as_written or "")) is None else string.strip()
    if inner in {"", "null"}:
        return "{}"
    return (as_json(inner) if inner.startswith("{") else None) or as_written


def joined(events: Iterable[Event]) -> list[Event]:
    """The same, with texts and arguments that follow each other in one.

    >>> joined([Said("a"), Said("b"), Argued("c"), Said(""), Argued("d")])
    [Said(text='ab'), Argued(text='cd')]
    """
    made: list[Event] = []
    for kind, run in groupby((event for event in events if event not in NOTHING), key=type):
        if kind is Called:
            made += run
        else:
            made.append(kind("".join(event.text for event in run if not isinstance(event, Called))))
    return made


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
