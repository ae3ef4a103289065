"""Takes from a mask what would repeat a key of an object, or lead to where only that is left.

Tokens are looked up by what they would do to a key: none is walked that cannot.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from services.worker.device.grammar.json_keys import SPACE, KeyTracker
from services.worker.device.grammar.masks import Words

Bits = npt.NDArray[np.uint32]  # of a mask, as `Words`

NO_STRING = re.compile(rb"[\[\]{}0-9eE+.,truefalsn \t\r\n-]*")  # JSON outside of strings
PROBES = (b'0"', b'x"', b'_z9"')  # ends of keys, one of which most kinds of keys take
LOOKS_MAX = 64  # steps of a search for a key that is left
TWO_KEYS = 4  # quotes around them


class UniqueKeys:
    """Args:
    tokenizer: of the model's vocabulary.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self.bytes_of = [tokenizer.decode_bytes([t]) for t in range(tokenizer.vocab_size)]
        self.special = frozenset(
            t for t in range(tokenizer.vocab_size) if tokenizer.is_special_token(t)
        )
        self._whole: dict[bytes, list[int]] = defaultdict(list)  # without quotes
        self._ending: dict[bytes, list[int]] = defaultdict(list)  # by what is before their quote
        self._within: dict[bytes, list[int]] = defaultdict(list)  # by what is between two of them
        self._opening: dict[bytes, list[int]] = defaultdict(list)  # by what is behind the last
        self._quoted: list[int] = []
        self._escaping: list[int] = []  # with a backslash and a quote
        self._space: list[int] = []
        self._commas: tuple[list[int], list[int]] = ([], [])  # without quotes, and with
        self._many: list[int] = []  # with quotes for two keys, or for one and a backslash
        for token, data in enumerate(self.bytes_of):
            if token not in self.special:
                self._sort(token, data)
        self._probes = [
            [tokenizer.greedy_tokenize(opening + probe.decode()) for probe in PROBES]
            for opening in ("", '"')
        ]

    def _sort(self, token: int, data: bytes) -> None:
        parts = data.split(b'"')
        if not data.strip(SPACE):
            self._space.append(token)
        if data.rstrip(SPACE).endswith(b",") and (len(parts) > 1 or NO_STRING.fullmatch(data)):
            self._commas[len(parts) > 1].append(token)
        if len(parts) == 1:
            self._whole[data].append(token)
            return
        self._quoted.append(token)
        if len(parts) > TWO_KEYS or (len(parts) > 2 and b"\\" in data):
            self._many.append(token)
        if b"\\" in data:
            self._escaping.append(token)
            return
        self._ending[parts[0]].append(token)
        self._opening[parts[-1]].append(token)
        for between in parts[1:-1]:
            self._within[between].append(token)

    def filtered(self, keys: KeyTracker, matcher: LLMatcher, words: Words) -> Words:
        """A mask without what would repeat a key.

        Args:
            keys: where the reply is.
            matcher: where it is in its grammar, which is not changed.
            words: what that allows.
        """
        allowed = words.view(np.uint32).copy()
        for token in self._repeating(keys):
            if _is_in(allowed, token) and not self._walked(keys, token)[1]:
                _take_out(allowed, token)
        known: dict[tuple[int, bytes | None], bool] = {}
        for token in self._towards_taken(keys):
            if _is_in(allowed, token):
                after, is_unique = self._walked(keys, token)
                place = (len(after.open), after.key)
                if is_unique and place not in known:
                    known[place] = self._has_way(after, matcher, token)
                if not (is_unique and known[place]):
                    _take_out(allowed, token)
        return allowed.view(np.int32)

    def feed(self, keys: KeyTracker, token: int) -> bool:
        """Read a token; whether it repeats no key."""
        if token >= len(self.bytes_of):
            return True
        return keys.feed(self.bytes_of[token], is_special=token in self.special)

    def _walked(self, keys: KeyTracker, token: int) -> tuple[KeyTracker, bool]:
        after = keys.copy()
        return after, self.feed(after, token)

    def _repeating(self, keys: KeyTracker) -> Iterator[int]:
        """Tokens that may complete a key that there is."""
        if not keys.in_json:
            return
        yield from self._many
        taken = _taken(keys)
        if keys.key is not None and keys.open[-1]:
            key = keys.key
            if b"\\" in key:
                yield from self._quoted
                return
            yield from self._escaping
            for each in keys.open[-1] or ():
                if each.startswith(key):
                    yield from self._ending.get(each[len(key) :], ())
        for each in taken if len(taken) < len(self._within) else list(self._within):
            yield from self._within.get(each, ())

    def _towards_taken(self, keys: KeyTracker) -> Iterator[int]:
        """Tokens behind which a key stands that begins one that there is, or is to begin."""
        found: set[bytes] = set()
        if any(keys.open):
            yield from self._commas[True] if keys.in_string else chain(*self._commas)
        if keys.key is not None:
            begun, own = keys.key, keys.open[-1] or ()
            for key in own:
                if key.startswith(begun):
                    found.update(
                        key[len(begun) : end] for end in range(len(begun) + 1, len(key) + 1)
                    )
            for more in found:
                yield from self._whole.get(more, ())
            found.clear()
        for key in _taken(keys):
            found.update(key[:end] for end in range(len(key) + 1))
        for begun in found:
            yield from self._opening.get(begun, ())

    def _has_way(self, after: KeyTracker, matcher: LLMatcher, token: int) -> bool:
        """Whether some key that is not taken is left behind a token.

        Args:
            after: where the reply is behind it.
            matcher: before it.
        """
        is_before = after.key is None and after.takes_key
        own = after.open[-1] if is_before or after.key is not None else None
        if not own or not any(key.startswith(after.key or b"") for key in own):
            return True
        for probe, tokens in zip(PROBES, self._probes[is_before], strict=True):
            if (after.key or b"") + probe[:-1] not in own:
                whole = [token, *tokens]
                if matcher.validate_tokens(whole) == len(whole):
                    return True
        behind = matcher.deep_copy()
        behind.consume_token(token)
        return self._search(after, behind, [LOOKS_MAX])

    def _search(self, keys: KeyTracker, matcher: LLMatcher, looks: list[int]) -> bool:
        """Whether a key ends or leads away from all that are taken, within so many looks."""
        looks[0] -= 1
        if looks[0] < 0:
            return True
        words = np.frombuffer(matcher.compute_bitmask(), np.uint32).copy()
        towards: list[int] = []
        if keys.key is None:  # space goes on to the same keys; it is followed where it has to come
            towards = [token for token in self._space if _is_in(words, token)]
            for token in towards:
                _take_out(words, token)
            towards = [] if words.any() else towards
        for token in self._repeating(keys):
            if _is_in(words, token) and not self._walked(keys, token)[1]:
                _take_out(words, token)
        for token in self._towards_taken(keys):
            if _is_in(words, token):
                towards.append(token)
                _take_out(words, token)
        if words.any():
            return True
        for token in towards:
            behind = matcher.deep_copy()
            behind.consume_token(token)
            if self._search(self._walked(keys, token)[0], behind, looks):
                return True
        return False


def _taken(keys: KeyTracker) -> set[bytes]:
    """Keys of all open objects: a token may close some of them before it writes one."""
    return set().union(*filter(None, keys.open))


def _is_in(words: Bits, token: int) -> bool:
    return token >> 5 < len(words) and bool(
        words[token >> 5] >> np.uint32(token & 31) & np.uint32(1)
    )


def _take_out(words: Bits, token: int) -> None:
    words[token >> 5] &= ~np.uint32(1 << (token & 31))
