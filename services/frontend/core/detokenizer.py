"""Text out of a growing run of tokens: whole characters only, cut at stop strings.

Decoding tokens one at a time is wrong (a character can span tokens; some tokenizers drop a space at
the start of whatever they decode), and decoding everything at every token is quadratic. So a short
window is decoded twice, with and without its newest tokens, and the difference is the new text.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
CONTEXT_TOKENS = 5  # of the prompt: whether the reply starts with a space shows only after them
UTF8_BYTES_MAX = 4
HELD_TOKENS_MAX = 32  # beyond this, bytes that form no character are let go whatever follows


class Detokenizer:
    """One reply's text.

    Args:
        decode: token ids to text, special tokens left out or not as the caller wants them.
        context: the prompt's tokens; only the last few are used.
        stop: texts that end the reply.
        keep_stop: whether the reply shows the stop string that ended it.
        stop_after: number of tokens for which stop strings are not looked for.

    Attributes:
        starts: for each decoded token, where its text starts in the reply.
        stopped: a stop string was met; nothing more is taken.
        stopped_by: that stop string.
        num_fed: tokens taken, the one that completed a stop string included.
    """

    def __init__(
        self,
        decode: Decode,
        context: Sequence[int] = (),
        stop: Sequence[str] = (),
        *,
        keep_stop: bool = False,
        stop_after: int = 0,
    ) -> None:
        window = list(context[-CONTEXT_TOKENS:])
        if decode(window).endswith(REPLACEMENT):
            window = []  # a prompt that ends within a character
        self._decode = decode
        self._window = window
        self._num_read = len(window)  # tokens of the window whose text is out
        self._read_text = decode(window)
        self._stop = tuple(stop)
        self._stop_chars_max = max(map(len, stop), default=0)
        self._keep_stop = keep_stop
        self._stop_after = stop_after
        self._parts: list[str] = []
        self._num_chars = 0  # decoded, held back or not
        self._num_released = 0
        self._held = ""  # decoded, but may be the beginning of a stop string
        self._cut: int | None = None
        self.starts: list[int] = []
        self.stopped = False
        self.stopped_by: str | None = None
        self.num_fed = 0

    def feed(self, tokens: Sequence[int]) -> str:
        """Take tokens; returns the text that can be shown now."""
        out = []
        for token in tokens:
            if self.stopped:
                break
            self.num_fed += 1
            self._window.append(token)
            self.starts.append(self._num_chars)
            out.append(self._release(self._advance()))
        return "".join(out)

    def finish(self) -> str:
        """No more tokens come: returns what was held back."""
        if self.stopped:
            return ""
        rest = self._decode(self._window)[len(self._read_text) :]
        self._num_chars += len(rest)
        text = self._release(rest)
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        self._num_released = self._num_chars
        return text

    @property
    def num_tokens_released(self) -> int:
        """Leading tokens of which some text was shown, or that come before one of which it was."""
        return bisect_left(self.starts, self._num_released)

    def whole_tokens(self) -> tuple[int, str]:
        """The tokens that lie wholly in the shown reply, and exactly their text."""
        text = "".join(self._parts)
        if self._cut is None or self._cut >= self._num_chars:
            return len(self.starts), text
        num = bisect_left(self.starts, self._cut)
        if self.starts[num : num + 1] != [self._cut]:  # the cut is within a token: leave it out
            num = bisect_left(self.starts, self.starts[num - 1])
        return num, text[: self.starts[num]]

    def _advance(self) -> str:
        """Text that the newest token completed."""
        text = self._decode(self._window)
        end = len(self._window)
        if text.endswith(REPLACEMENT) and (early := self._stable(text)) is not None:
            end, text = early
        elif text.endswith(REPLACEMENT) and end - self._num_read < HELD_TOKENS_MAX:
            return ""
        fresh = text[len(self._read_text) :]
        self._num_chars += len(fresh)
        del self._window[: self._num_read]
        self._num_read = end - self._num_read
        self._read_text = self._decode(self._window[: self._num_read])
        return fresh

    def _stable(self, text: str) -> tuple[int, str] | None:
        """The part of a window ending in broken bytes that no later token can change.

        It must end between characters: a cut within broken bytes that count as one would make them
        count as two. One of any few places next to each other is such an end.
        """
        last = len(self._window) - UTF8_BYTES_MAX
        for end in range(last, max(self._num_read, last - UTF8_BYTES_MAX), -1):
            early = self._decode(self._window[:end])
            if early + self._decode(self._window[end:]) == text:
                return end, early
        return None

    def _release(self, fresh: str) -> str:
        """Pass on `fresh` but for what may begin a stop string; cut at a whole one."""
        if not fresh:
            return ""
        self._parts.append(fresh)
        text = self._held + fresh
        if not self._stop or self.num_fed <= self._stop_after:
            self._num_released += len(text)
            self._held = ""
            return text
        if found := self._first_stop(text):
            start, length = found
            shown = text[: start + length] if self._keep_stop else text[:start]
            self._held = ""
            self._num_released += len(shown)
            self._cut = self._num_released
            self.stopped, self.stopped_by = True, text[start : start + length]
            return shown
        keep = num_held_back(text, self._stop, self._stop_chars_max)
        shown, self._held = text[: len(text) - keep], text[len(text) - keep :]
        self._num_released += len(shown)
        return shown

    def _first_stop(self, text: str) -> tuple[int, int] | None:
        found = [(at, len(stop)) for stop in self._stop if (at := text.find(stop)) >= 0]
        return min(found, default=None)


def num_held_back(text: str, marks: Sequence[str], chars_max: int) -> int:
    """Length of the longest end of `text` that begins one of `marks`, of which the longest has so
    many characters.

    >>> num_held_back("a <to", ["<tool_call>"], 11), num_held_back("a <b", ["<tool_call>"], 11)
    (3, 0)
    """
    for length in range(min(len(text), chars_max - 1), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


def text_and_starts(decode: Decode, tokens: Sequence[int]) -> tuple[str, list[int]]:
    """All of a text at once, and where in it each token's text starts.

    >>> text_and_starts(lambda tokens: "".join(map(chr, tokens)), [97, 98])
    ('ab', [0, 1])
    """
    whole = Detokenizer(decode)
    text = whole.feed(tokens) + whole.finish()
    return text, whole.starts
