"""Makes grammars, and sees that they can be used before a turn is held to them."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from llguidance import LLTokenizer

from shared.deep_threads import DeepThreads
from shared.errors import InvalidRequest, NoCapacity
from shared.grammar import REASON_CHARS_MAX, byte_tokenizer, flaw_of

THREADS = 2
PATIENCE_S = 5.0
WAITING_MAX = 64
KNOWN_MAX = 256


@dataclass(frozen=True, slots=True)
class _Made:
    """A grammar, or why there is none."""

    grammar: str = ""
    flaw: str = ""


class GrammarMaker:
    """Remembers what it made, and what it could not make: the same comes again and again. It works
    in threads of its own, since some of it takes long; what recurses deep has room there.
    """

    def __init__(self) -> None:
        self._threads = DeepThreads(THREADS, "grammars")  # no thread before it is used
        self._turns = asyncio.Semaphore(THREADS)
        self._num_waiting = 0
        self._known: OrderedDict[bytes, _Made] = OrderedDict()
        self._tokenizer: LLTokenizer | None = None

    async def make(self, key: bytes, write: Callable[[], str], name: str) -> str:
        """A grammar that can be compiled, within limits, and within which something can be said.

        Args:
            key: of all that decides what `write` gives, which may raise `ValueError`.
            name: of the field that it comes from.

        Raises:
            InvalidRequest: there is none, and why.
            NoCapacity: too many are waited for.
        """
        if (made := self._known.get(key)) is not None:
            self._known.move_to_end(key)
        else:
            made = await self._make(write)
            self._known[key] = made
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        if made.flaw:
            param = name.partition(".")[0]
            raise InvalidRequest(f"{name}: {made.flaw}", param, code="invalid_grammar")
        return made.grammar

    def close(self) -> None:
        """Let go of its threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _make(self, write: Callable[[], str]) -> _Made:
        if self._num_waiting >= WAITING_MAX:
            raise NoCapacity("too many grammars are being compiled")
        self._num_waiting += 1
        try:
            async with self._turns:  # the time of others does not count
                loop = asyncio.get_running_loop()
                making = loop.run_in_executor(self._threads, self._made, write)
                made: _Made = await asyncio.wait_for(making, PATIENCE_S)
                return made
        except TimeoutError:
            return _Made(flaw=f"it takes longer than {PATIENCE_S:g} s to compile")
        finally:
            self._num_waiting -= 1

    def _made(self, write: Callable[[], str]) -> _Made:
        """In a thread."""
        if self._tokenizer is None:
            self._tokenizer = byte_tokenizer()
        try:
            grammar = write()
        except (ValueError, RecursionError) as error:
            return _Made(flaw=str(error)[:REASON_CHARS_MAX] or type(error).__name__)
        return _Made(grammar, flaw_of(grammar, self._tokenizer))
