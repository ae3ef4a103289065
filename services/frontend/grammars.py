"""Sees that a grammar can be used before a turn is held to it."""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from llguidance import LLTokenizer

from shared.errors import InvalidRequest
from shared.grammar import byte_tokenizer, flaw_of

THREADS = 2
PATIENCE_S = 5.0
GOOD_MAX = 4096


class GrammarChecks:
    """Remembers what was good: the same schema comes again and again."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "grammars")  # no thread before it is used
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._tokenizer: LLTokenizer | None = None

    async def check(self, grammar: str, name: str) -> None:
        """See that it can be compiled, within limits, and that something can be said within it.

        Args:
            name: of the field that it comes from.

        Raises:
            InvalidRequest: it cannot, and why.
        """
        key = sha256(grammar.encode()).digest()
        if key in self._good:
            self._good.move_to_end(key)
            return
        loop = asyncio.get_running_loop()
        checking = loop.run_in_executor(self._threads, self._flaw_of, grammar)
        try:
            flaw = await asyncio.wait_for(checking, PATIENCE_S)
        except TimeoutError:
            flaw = f"it takes longer than {PATIENCE_S:g} s to compile"
        if flaw:
            param = name.partition(".")[0]
            raise InvalidRequest(f"{name}: {flaw}", param, code="invalid_grammar")
        self._good[key] = None
        if len(self._good) > GOOD_MAX:
            self._good.popitem(last=False)

    def close(self) -> None:
        """Let go of its threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _flaw_of(self, grammar: str) -> str:
        if self._tokenizer is None:
            self._tokenizer = byte_tokenizer()
        return flaw_of(grammar, self._tokenizer)
