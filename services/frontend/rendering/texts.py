"""Chats to texts, texts to tokens and back. Templates run in processes of their own, always, and so
does what else takes long; short texts are tokenized here and now.

What is done here holds up every other request, so it must be short whatever a client sends.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from services.frontend.core.sessions.prompt_reuse import extend_keys
from services.frontend.rendering import frames
from services.frontend.rendering.pool import Pool
from services.frontend.rendering.tokenizer import INLINE_CHARS_MAX, ModelTokenizer
from shared.blocks import BlockKey
from shared.errors import InvalidRequest, NoCapacity
from shared.fair_slots import Overloaded

log = logging.getLogger(__name__)

TOO_LONG = "prompt_takes_too_long"

TEMPLATE_CPU_S = 1.0  # for a short chat, of which a usual template takes a ten-thousandth
SLOW_S = 60.0
SLOW_WAITING_MAX = 8
QUICK_MESSAGES_MAX = 64
INLINE_TOKENS_MAX = 32_768  # decoded at once in about 2 ms
INLINE_ECHO_MAX = 2048  # decoded one by one in about 3 ms
SLICE_TOKENS = 131_072  # whose keys take about 5 ms


class TooManyTokens(InvalidRequest):
    """A text has more tokens than are of use."""

    code = "context_length_exceeded"

    def __init__(self, num: int, num_max: int) -> None:
        super().__init__(f"the prompt has {num} tokens; at most {num_max} are taken", "messages")


@dataclass(slots=True)
class _Slow:
    """A model whose template took too long."""

    until_s: float = 0.0
    num_waiting: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Texts:
    """What `ModelTokenizer` does, for texts of any length and templates of any kind.

    Args:
        pool: for long texts.
        quick: for short chats, which do not wait behind long texts.
    """

    def __init__(self, pool: Pool, quick: Pool) -> None:
        self._pool = pool
        self._quick = quick
        self._slow: dict[str, _Slow] = {}

    async def template_names(self, tokenizer: ModelTokenizer) -> frozenset[str]:
        """What a model's template reads beside the messages; nothing, if to compile it takes too
        long.

        Raises:
            NoCapacity: as `render`.
        """
        if not tokenizer.has_template:
            return frozenset()
        try:
            _, data = await self._run(self._quick, tokenizer, "names")
        except InvalidRequest as error:
            log.warning(
                "unusable template", extra={"model": tokenizer.source, "why": error.message}
            )
            return frozenset()
        return frozenset(data.decode().split())

    async def render(
        self, tokenizer: ModelTokenizer, messages: list[dict[str, Any]], options: dict[str, Any]
    ) -> str:
        """A chat as the model's own template writes it.

        Raises:
            InvalidRequest: there is no template, it refuses these messages, or takes too long.
            NoCapacity: too many texts are under way.
        """
        if not is_short(messages, options):
            return (await self._run(self._pool, tokenizer, "render", messages, options))[1].decode()
        async with self._alone_if_slow(tokenizer):
            try:
                _, data = await self._run(self._quick, tokenizer, "render", messages, options)
            except InvalidRequest as error:
                if error.code == TOO_LONG:
                    until_s = asyncio.get_running_loop().time() + SLOW_S
                    self._slow.setdefault(tokenizer.name, _Slow()).until_s = until_s
                raise
        return data.decode()

    @asynccontextmanager
    async def _alone_if_slow(self, tokenizer: ModelTokenizer) -> AsyncIterator[None]:
        """Render one chat at a time of a model whose template took too long lately, of all tenants
        together: other models' chats find the other processes free.

        Raises:
            NoCapacity: too many wait for it.
        """
        slow = self._slow.get(tokenizer.name)
        if slow is None or slow.until_s <= asyncio.get_running_loop().time():
            self._slow.pop(tokenizer.name, None)
            yield
            return
        if slow.num_waiting >= SLOW_WAITING_MAX:
            raise Overloaded("too many chats of a model whose chat template takes too long")
        slow.num_waiting += 1
        try:
            async with slow.turn:
                yield
        finally:
            slow.num_waiting -= 1

    async def encode(
        self, tokenizer: ModelTokenizer, text: str, *, special: bool, tokens_max: int | None = None
    ) -> list[int]:
        """Tokens of a text.

        Args:
            tokens_max: more of a long text are not fetched from the process that tokenized it.

        Raises:
            TooManyTokens: a long text has more.
            InvalidRequest, NoCapacity: as `render`.
        """
        if len(text) <= INLINE_CHARS_MAX:
            return tokenizer.encode(text, special=special)
        kind, data = await self._run(self._pool, tokenizer, "encode", text, special, tokens_max)
        if kind == frames.COUNT:
            assert tokens_max is not None
            raise TooManyTokens(frames.LENGTH.unpack(data)[0], tokens_max)
        return frames.unpack_tokens(data)

    async def decode_all(self, tokenizer: ModelTokenizer, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones included. Raises: as `render`."""
        if len(tokens) <= INLINE_TOKENS_MAX:
            return tokenizer.decode_all(tokens)
        packed = frames.pack_tokens(tokens)
        return (await self._run(self._pool, tokenizer, "decode", packed))[1].decode()

    async def echo(self, tokenizer: ModelTokenizer, tokens: Sequence[int]) -> tuple[str, list[int]]:
        """Text of a prompt, and where in it each token's text starts. Raises: as `render`."""
        if len(tokens) <= INLINE_ECHO_MAX:
            return tokenizer.echo(tokens)
        _, data = await self._run(self._pool, tokenizer, "echo", frames.pack_tokens(tokens))
        return frames.unpack_echo(data)

    async def _run(
        self, pool: Pool, tokenizer: ModelTokenizer, operation: frames.Operation, *arguments: Any
    ) -> tuple[bytes, bytes]:
        cpu_s = TEMPLATE_CPU_S if pool is self._quick else pool.limit_s
        task = frames.Task(tokenizer.name, tokenizer.source, operation, arguments, cpu_s)
        try:
            kind, data = await pool.run(frames.pack_task(task))
        except TimeoutError:
            raise _too_long(operation, pool.limit_s) from None
        if kind == frames.UNLOADED:
            raise NoCapacity(f"the model's tokenizer cannot be loaded: {data.decode()}")
        if kind == frames.SLOW:
            raise _too_long(operation, cpu_s)
        if kind == frames.REFUSED:
            raise InvalidRequest(data.decode(), "messages" if operation == "render" else None)
        return kind, data


def is_short(messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> bool:
    """Whether a usual template renders a chat in no time. What a client passes to the template
    beside the messages may be a number that it counts to; yes, no and nothing can only choose.
    Tools and their calls it writes out.

    >>> is_short([{"content": "hi"}], {"x": True}), is_short([{"content": "hi"}], {"x": 9})
    (True, False)
    """
    if len(messages) > QUICK_MESSAGES_MAX:
        return False
    others = {name: value for name, value in options.items() if name != "tools"}
    if any(value is not None and not isinstance(value, bool) for value in others.values()):
        return False
    num_chars = 0
    for length in _lengths(messages, options.get("tools") or ()):
        num_chars += length
        if num_chars > INLINE_CHARS_MAX:
            return False
    return True


def _lengths(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Iterator[int]:
    """Of what a template writes."""
    for message in messages:
        yield sum(len(message.get(name, "")) for name in ("content", "name", "tool_call_id"))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            arguments = function["arguments"]
            yield len(call.get("id", "")) + len(function["name"])
            yield len(arguments if isinstance(arguments, str) else json.dumps(arguments))
    for tool in tools:
        yield len(json.dumps(tool))


async def keys_of(
    root: BlockKey, known: Sequence[BlockKey], tokens: list[int], block_tokens: int
) -> list[BlockKey]:
    """`extend_keys`, with pauses in which others have their turn."""
    keys = list(known)
    start = len(keys) * block_tokens
    for end in range(start + SLICE_TOKENS, len(tokens), SLICE_TOKENS):
        keys = extend_keys(root, keys, tokens[:end], block_tokens)
        await asyncio.sleep(0)
    return extend_keys(root, keys, tokens, block_tokens)


def _too_long(operation: frames.Operation, limit_s: float) -> InvalidRequest:
    is_template = operation in frames.TEMPLATE_OPERATIONS
    what = "the model's chat template runs" if is_template else "the prompt takes"
    to = "" if is_template else " to prepare"
    return InvalidRequest(f"{what} longer{to} than {limit_s:g} s", code=TOO_LONG)
