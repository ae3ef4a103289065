"""Forms with files (``multipart/form-data``), read as they come and never kept.

Not by python-multipart: that refuses a text before the first boundary, which RFC 2046 allows, logs
a warning for each broken form, and has no limit on parts, or on a part's headers together.

Source: RFC 7578; RFC 2046, section 5.1.
"""

import re
from dataclasses import dataclass
from typing import Literal

from shared.errors import InvalidRequest

HEAD_BYTES_MAX = 8192
PARTS_MAX = 64

_BOUNDARY = re.compile(
    r"""[ ;]boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70})(?=[\s;,]|$))""", re.IGNORECASE
)
_PARAMETER = r"""[ ;]{}="((?:[^"\\\r\n]|\\.)*)\""""
_NAME = re.compile(_PARAMETER.format("name"), re.IGNORECASE)
_FILE = re.compile(_PARAMETER.format("filename"), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """The next part begins.

    Attributes:
        file: name of its file, without folders; None: it is no file.
    """

    name: str
    file: str | None


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of the last part, never empty."""

    data: bytes


Event = Part | Data


class Multipart:
    """Parses one form as it comes.

    Args:
        content_type: the header of that name.

    Raises:
        InvalidRequest: it is no form.
    """

    def __init__(self, content_type: str) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        found = _BOUNDARY.search(content_type)
        if kind != "multipart/form-data" or found is None:
            raise InvalidRequest("the body must be multipart/form-data, with a boundary")
        self._delimiter = b"\r\n--" + (found[1] or found[2]).encode("latin-1", "replace")
        # Before the first part: that begins behind a delimiter, whose line break may be missing.
        self._buffer = bytearray(b"\r\n")
        self._state: Literal["before", "delimited", "head", "data", "over"] = "before"
        self._num_parts = 0

    def feed(self, data: bytes) -> list[Event]:
        """More of the body came.

        Raises:
            InvalidRequest: it is no such form.
        """
        self._buffer += data
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def finish(self) -> None:
        """Nothing more comes.

        Raises:
            InvalidRequest: the form has no end.
        """
        if self._state != "over":
            raise InvalidRequest("the body: the form ends in the middle of a part")

    def _step(self, events: list[Event]) -> bool:
        """Take the next thing out of the buffer, if there is a whole one."""
        match self._state:
            case "before" | "data":
                return self._take_data(events)
            case "delimited":
                return self._take_delimiter()
            case "head":
                return self._take_head(events)
            case "over":
                self._buffer.clear()  # what is behind a form means nothing
                return False

    def _take_data(self, events: list[Event]) -> bool:
        at = self._buffer.find(self._delimiter)
        end = max(len(self._buffer) - len(self._delimiter) + 1, 0) if at < 0 else at
        if end and self._state == "data":
            events.append(Data(bytes(self._buffer[:end])))
        del self._buffer[:end]
        if at < 0:
            return False
        del self._buffer[: len(self._delimiter)]
        self._state = "delimited"
        return True

    def _take_delimiter(self) -> bool:
        if len(self._buffer) < 2:
            return False
        ending = bytes(self._buffer[:2])
        if ending not in (b"\r\n", b"--"):
            raise InvalidRequest("the body: something stands behind a boundary")
        del self._buffer[:2]
        self._state = "head" if ending == b"\r\n" else "over"
        return True

    def _take_head(self, events: list[Event]) -> bool:
        end = self._buffer.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(self._buffer) >= HEAD_BYTES_MAX:
                raise InvalidRequest("the body: a part's head is too long")
            return False
        self._num_parts += 1
        if self._num_parts > PARTS_MAX:
            raise InvalidRequest(f"the body: more than {PARTS_MAX} parts")
        events.append(_part(bytes(self._buffer[:end]).decode("utf-8", "replace")))
        del self._buffer[: end + 4]
        self._state = "data"
        return True


def _part(head: str) -> Part:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            found, file = _NAME.search(value), _FILE.search(value)
            if found is not None:
                return Part(_plain(found[1]), None if file is None else _base(_plain(file[1])))
    raise InvalidRequest("the body: a part has no name")


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _base(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]
