"""Where a request's head, chunks and trailers end, and how long they may be.

The parser keeps what it reads of a header in memory and copies it with every piece that comes. So
it gets no byte before it is counted here, and it gets header lines whole.
"""

from typing import Literal

from shared.errors import InvalidRequest

HEAD_BYTES_MAX = 64 * 1024  # with the line breaks before it, and with the trailers
HEADERS_MAX = 256  # with the trailers
REQUEST_LINE_BYTES_MAX = 8 * 1024  # with the line breaks before it
CHUNK_LINE_BYTES_MAX = 256  # a chunk's size and its extensions
FREE_FRAMING_BYTES = 16 * 1024  # of chunks' sizes, extensions and line breaks
BODY_BYTES_PER_FRAMING_BYTE = 8  # chunks of 48 bytes or more pass however many they are

_LINE_BREAKS = b"\r\n"


class HeadTooLarge(InvalidRequest):
    """The headers or trailers are too long, or too many."""

    code = "head_too_large"
    http_status = 431


class UrlTooLong(InvalidRequest):
    """The request line is too long."""

    code = "url_too_long"
    http_status = 414


class ChunksTooSmall(InvalidRequest):
    """The body's chunks have long extensions, or are too small for their number."""

    code = "invalid_http"


class Framing:
    """The requests of one connection, one after the other.

    `take` divides what comes into pieces for the parser. What the parser reports about a piece is
    passed on (`on_head`, `on_end`) before the next one is taken. The verdict depends on the bytes
    that come, not on how they are divided when they come.
    """

    __slots__ = (
        "_has_begun",
        "_head_bytes",
        "_is_first_line",
        "_left",
        "_line",
        "_num_body_bytes",
        "_num_framing_bytes",
        "_num_headers",
        "_state",
    )

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._state: Literal["head", "length", "size", "chunk", "break", "trailers"] = "head"
        self._is_first_line = True  # in the request line, or before it
        self._has_begun = False
        self._head_bytes = self._num_headers = 0
        self._line = b""  # what came of a line that the parser gets when it is whole
        self._left = 0  # bytes of the body, of a chunk, or of the line break behind it
        self._num_body_bytes = self._num_framing_bytes = 0

    @property
    def is_between(self) -> bool:
        """Whether no byte of a request has come since the last one ended."""
        return self._state == "head" and not self._head_bytes

    def on_head(self, length: int | None) -> None:
        """The parser has read a whole head.

        Args:
            length: of its body, bytes; None: it comes in chunks.
        """
        self._state, self._left = ("size", 0) if length is None else ("length", length)

    def on_end(self) -> None:
        """The parser has read a whole request."""
        self._reset()

    def take(self, data: bytes, at: int) -> tuple[bytes, int]:
        """The next piece of `data` for the parser, perhaps empty, and where the next one starts.

        Args:
            at: where this one starts, below the length of `data`.

        Raises:
            HeadTooLarge, UrlTooLong, ChunksTooSmall: the connection has to end here.
        """
        match self._state:
            case "head":
                return self._take_head(data, at)
            case "trailers":
                return self._take_header(data, at)
            case "size":
                return self._take_size(data, at)
            case _:
                return self._take_counted(data, at)

    def _take_head(self, data: bytes, at: int) -> tuple[bytes, int]:
        """A whole head at once, or else what came of the request line."""
        if not self._is_first_line:
            return self._take_header(data, at)
        if not self._head_bytes and (end := _end_of_plain_head(data, at)):
            self._is_first_line = False
            self._head_bytes = end - at
            self._num_headers = data.count(b"\n", at, end) - 2
            return data[at:end], end
        end, is_whole = _line_end(data, at)
        piece = data[at:end]
        self._head_bytes += len(piece)
        if self._head_bytes > REQUEST_LINE_BYTES_MAX:
            raise UrlTooLong(f"the request line is longer than {REQUEST_LINE_BYTES_MAX} bytes")
        self._has_begun = self._has_begun or bool(piece.strip(_LINE_BREAKS))
        self._is_first_line = not (is_whole and self._has_begun)
        return piece, end

    def _take_header(self, data: bytes, at: int) -> tuple[bytes, int]:
        """A line of the head or the trailers, once it is whole."""
        end, is_whole = _line_end(data, at)
        self._head_bytes += end - at
        if self._head_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge(f"the request's head is larger than {HEAD_BYTES_MAX} bytes")
        self._line += data[at:end]
        if not is_whole:
            return b"", end
        line, self._line = self._line, b""
        if line.strip(_LINE_BREAKS):
            self._num_headers += 1
            if self._num_headers > HEADERS_MAX:
                raise HeadTooLarge(f"the request has more than {HEADERS_MAX} headers")
        # Nothing else than HTTP/1.1 is spoken here, which a server says by ignoring the wish. The
        # parser would take the body for the other protocol's bytes.
        return b"" if line[:8].lower() == b"upgrade:" else line, end

    def _take_size(self, data: bytes, at: int) -> tuple[bytes, int]:
        """A chunk's size and its extensions, once they are whole."""
        end, is_whole = _line_end(data, at)
        if len(self._line) + end - at > CHUNK_LINE_BYTES_MAX:
            raise ChunksTooSmall(
                f"a chunk's size and extensions are longer than {CHUNK_LINE_BYTES_MAX} bytes"
            )
        self._line += data[at:end]
        if not is_whole:
            return b"", end
        line, self._line = self._line, b""
        self._num_framing_bytes += len(line) + len(_LINE_BREAKS)
        allowed = FREE_FRAMING_BYTES + self._num_body_bytes // BODY_BYTES_PER_FRAMING_BYTE
        if self._num_framing_bytes > allowed:
            raise ChunksTooSmall("the body's chunks are too small for their number")
        self._left = _chunk_bytes(line)
        self._state = "chunk" if self._left else "trailers"
        return line, end

    def _take_counted(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Bytes of the body, or of the line break behind a chunk."""
        end = min(at + self._left, len(data))
        if end == at:
            raise ChunksTooSmall("the request goes on behind its end")
        self._left -= end - at
        if self._state != "break":
            self._num_body_bytes += end - at
        if not self._left and self._state == "chunk":
            self._state, self._left = "break", len(_LINE_BREAKS)
        elif not self._left and self._state == "break":
            self._state = "size"
        return data[at:end], end


def _end_of_plain_head(data: bytes, at: int) -> int:
    """Where a head ends that can be given to the parser at once; 0: there is no such head."""
    end = data.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX) + 4
    if end < 4 or data[at] in _LINE_BREAKS:
        return 0
    is_plain = (
        data.find(b"\n", at, end) - at < REQUEST_LINE_BYTES_MAX
        and data.count(b"\n", at, end) - 2 <= HEADERS_MAX
        and b"\nupgrade:" not in data[at:end].lower()
    )
    return end if is_plain else 0


def _line_end(data: bytes, at: int) -> tuple[int, bool]:
    """Where a line ends, or what came of it; and whether it is whole."""
    end = data.find(b"\n", at) + 1
    return (end, True) if end else (len(data), False)


def _chunk_bytes(line: bytes) -> int:
    """Of a line that the parser is going to check."""
    try:
        return max(int(line.partition(b";")[0], 16), 0)
    except ValueError:
        return 0
