"""Where a reply is in its JSON, and which keys each open object has by now.

A grammar cannot keep an object's keys from repeating where they may be any: it has no memory of
them. This has.
"""

import json
from collections.abc import Sequence

SPACE = b" \t\r\n"
QUOTE, BACKSLASH = ord('"'), ord("\\")
MARK_BYTES_MAX = 4096


class KeyTracker:
    """Reads a reply's bytes as they come.

    Args:
        after: marks behind which JSON comes; an empty one: the reply begins with it.

    Attributes:
        open: keys of each bracket that is open, decoded; None: of a list.
        key: of the key that is being written, its bytes as they stand; None: none is.
        takes_key: one, or an object's end, is next.
    """

    def __init__(self, after: Sequence[bytes]) -> None:
        self._marks = [mark for mark in after if mark]
        self._tail_max = max(map(len, self._marks), default=0)
        self._tail = b""  # of a text outside of JSON, where a mark may be
        self.in_json = b"" in after
        self.open: list[set[bytes] | None] = []
        self.key: bytes | None = None
        self._in_value = False  # a string that is no key
        self._is_escaped = False
        self.takes_key = False
        self._shares_keys = False

    @property
    def in_string(self) -> bool:
        return self._in_value or self.key is not None

    def copy(self) -> "KeyTracker":
        """The same, which goes its own way."""
        made = KeyTracker.__new__(KeyTracker)
        made.__dict__.update(self.__dict__)
        made.open = self.open.copy()
        made._shares_keys = True
        return made

    def feed(self, data: bytes, *, is_special: bool = False) -> bool:
        """Read on; whether no key repeats in it.

        Args:
            is_special: it is a token of its own, which no JSON has.
        """
        if is_special:
            self._leave()
        is_unique = True
        for byte in data:
            if not self.in_json:
                self._look_for_mark(byte)
            elif self.key is not None:
                is_unique &= self._take_in_key(byte)
            elif self._in_value:
                self._take_in_value(byte)
            else:
                self._take(byte)
        return is_unique

    def _take(self, byte: int) -> None:
        if byte in SPACE:
            return
        if byte == QUOTE:
            if self.takes_key:
                self.key, self.takes_key = b"", False
            else:
                self._in_value = True
        elif byte in b"{[":
            self.open.append(set() if byte == ord("{") else None)
            self.takes_key = byte == ord("{")
        elif not self.open:  # a number or a word, or no JSON at all
            self._leave()
            self._look_for_mark(byte)
        elif byte in b"}]":
            self.open.pop()
            self.takes_key = False
            if not self.open:
                self._leave()
        elif byte == ord(","):
            self.takes_key = self.open[-1] is not None

    def _take_in_key(self, byte: int) -> bool:
        assert self.key is not None
        if byte != QUOTE or self._is_escaped:
            self.key += bytes([byte])
            self._is_escaped = byte == BACKSLASH and not self._is_escaped
            return True
        keys, key = self.open[-1], decoded(self.key)
        assert keys is not None
        is_unique = key not in keys
        if self._shares_keys:
            self.open[-1] = keys | {key}
        else:
            keys.add(key)
        self.key = None
        return is_unique

    def _take_in_value(self, byte: int) -> None:
        if byte == QUOTE and not self._is_escaped:
            self._in_value = False
            if not self.open:
                self._leave()
        self._is_escaped = byte == BACKSLASH and not self._is_escaped

    def _leave(self) -> None:
        """What follows is no JSON, as far as no mark says so."""
        self.in_json = self._in_value = self._is_escaped = self.takes_key = False
        self.open, self.key, self._tail = [], None, b""

    def _look_for_mark(self, byte: int) -> None:
        self._tail = (self._tail + bytes([byte]))[-self._tail_max :] if self._tail_max else b""
        if any(self._tail.endswith(mark) for mark in self._marks):
            self._leave()
            self.in_json = True


def decoded(key: bytes) -> bytes:
    r"""A key as it is meant, from between its quotes.

    >>> decoded(b"\\u0061"), decoded(b"a\\")
    (b'a', b'a\\')
    """
    if b"\\" not in key:
        return key
    try:
        text: str = json.loads(b'"' + key + b'"', strict=False)
    except ValueError:
        return key
    return text.encode(errors="surrogatepass")
