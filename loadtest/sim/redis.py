"""Redis in memory, with faults, and clients of it as redis-py has them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from loadtest.sim.keyspace import Keyspace, Stored
from loadtest.sim.loop import LoopHost, SimLoop, fail
from loadtest.sim.lua import scripts
from loadtest.sim.timeline import MS, SECOND, Timeline

WALL_START_NS = 1_800_000_000 * SECOND
WAY_MAX_NS = MS  # a command's, and an answer's
SCAN_CHUNK = 10
LOCATION_PREFIX = "symphony:kv:"
DENIED_WHEN_FULL = {
    b"SET", b"HSET", b"HINCRBY", b"SADD", b"ZADD", b"ZINCRBY", b"BITFIELD",
}  # fmt: skip
FULL = "OOM command not allowed when used memory > 'maxmemory'."

Value = str | bytes | int | float


class RedisServer(Keyspace):
    """A server: it goes away, is full, slow, or forgets.

    Args:
        wall_ns: the server's clock.

    Attributes:
        is_up: it answers.
        hangs: while it is away, clients wait for it instead of being refused.
        takes_writes: it is not full.
        way_max_ns: how long a command is on its way there, and the answer back, at most.
        num_lives: counts its restarts.
    """

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        super().__init__(wall_ns)
        self.is_up = True
        self.hangs = False
        self.takes_writes = True
        self.way_max_ns = WAY_MAX_NS
        self.num_lives = 0
        self._snapshot: tuple[dict[bytes, Stored], dict[bytes, int]] = ({}, {})
        self._has_written = False  # in the script that runs

    # What happens to it.

    def stop(self, *, hangs: bool) -> None:
        """It goes away; what it has stays."""
        self.is_up, self.hangs = False, hangs
        self.num_lives += 1

    def start(self) -> None:
        """It is back."""
        self.is_up = True

    def wipe(self) -> None:
        """Forget everything."""
        self._keys.clear()
        self._expires.clear()

    def save(self) -> None:
        """Take a snapshot."""
        self._snapshot = (_copied(self._keys), dict(self._expires))

    def go_back(self) -> None:
        """Restart with the last snapshot."""
        keys, expires = self._snapshot
        self._keys, self._expires = _copied(keys), dict(expires)

    # What is looked at from outside.

    def location_keys(self) -> list[str]:
        """Hashes of where sessions' KV is."""
        keys = (key.decode() for key in self.names())
        return [key for key in keys if key.startswith(LOCATION_PREFIX)]

    # Commands.

    def execute(self, *command: Value) -> Any:
        """A command's reply, as RESP2 has it: bytes, an int, a list, None, or True for ``OK``.

        Raises:
            ResponseError: the server refuses.
        """
        name, *arguments = map(_encoded, command)
        if name.upper() == b"EVAL":
            return self._eval(arguments)
        self._has_written = False
        return self._perform(name, *arguments)

    def carry_out(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """Replies to commands; the error of one that is refused is in place of its reply."""
        replies: list[Any] = []
        for command in commands:
            try:
                replies.append(self.execute(*command))
            except ResponseError as error:
                replies.append(error)
        return replies

    def _perform(self, name: bytes, *arguments: bytes) -> Any:
        name = name.upper()
        if name in DENIED_WHEN_FULL:
            if not self.takes_writes and not self._has_written:
                raise ResponseError(FULL)
            self._has_written = True
        return self.reply(name, *arguments)

    def _eval(self, arguments: Sequence[bytes]) -> Any:
        text, num_keys, *rest = arguments
        num = int(num_keys)
        self._has_written = False
        return scripts().run(text.decode(), rest[:num], rest[num:], self._perform)


def server_on(timeline: Timeline) -> RedisServer:
    """One whose clock is the timeline's."""
    return RedisServer(lambda: WALL_START_NS + timeline.now_ns)


class MemoryRedis:
    """A client on the loop that runs: as much of `redis.asyncio.Redis` as services use."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.is_closed = False

    async def execute_command(self, *command: Value) -> Any:
        """A command's answer."""
        (answer,) = await self._answers([command])
        if isinstance(answer, Exception):
            raise answer
        return answer

    @asynccontextmanager
    async def pipeline(self, transaction: bool = True) -> "AsyncIterator[SimPipeline]":
        """Commands that are sent together; without a transaction others come in between."""
        del transaction
        yield SimPipeline(self._answers)

    async def aclose(self) -> None:
        """Disconnect: every later command fails."""
        self.is_closed = True

    async def get(self, name: str) -> Any:
        return await self.execute_command("GET", name)

    async def set(self, name: str, value: Value, *, px: int | None = None, nx: bool = False) -> Any:
        expiry = () if px is None else ("PX", px)
        return await self.execute_command("SET", name, value, *expiry, *(("NX",) if nx else ()))

    async def hget(self, name: str, key: str) -> Any:
        return await self.execute_command("HGET", name, key)

    async def smembers(self, name: str) -> Any:
        return await self.execute_command("SMEMBERS", name)

    async def zcount(self, name: str, low: Value, high: Value) -> Any:
        return await self.execute_command("ZCOUNT", name, low, high)

    async def time(self) -> tuple[int, int]:
        seconds, us = await self.execute_command("TIME")
        return int(seconds), int(us)

    async def eval(self, script: str, numkeys: int, *keys_and_args: Value) -> Any:
        return await self.execute_command("EVAL", script, numkeys, *keys_and_args)

    async def scan_iter(self, *, match: str, count: int = SCAN_CHUNK) -> AsyncIterator[bytes]:
        await self.execute_command("EXISTS", "")  # a round trip
        found = [key for key in self.server.names() if fnmatchcase(key.decode(), match)]
        for at, key in enumerate(found):
            if at and at % count == 0:
                await self.execute_command("EXISTS", "")
            yield key

    async def _answers(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """Answers to commands that are sent together; errors of single ones are in their place.

        Raises:
            RedisConnectionError: the server cannot be reached, or the answer was lost.
            RedisTimeoutError: it did not answer in time; the commands may have been carried out.
        """
        await asyncio.sleep(0)
        if self.is_closed or not self.server.is_up:
            raise RedisConnectionError("closed" if self.is_closed else "refused")
        return self.server.carry_out(commands)


class SimRedis(MemoryRedis):
    """A client of one life of a process, as far away from its server as over a network.

    Args:
        host, loop: of the process.
        random: decides how long answers take.
        timeout_s: longer ones fail.
    """

    def __init__(
        self,
        server: RedisServer,
        timeline: Timeline,
        host: LoopHost,
        loop: SimLoop,
        random: Random,
        timeout_s: float,
    ) -> None:
        super().__init__(server)
        self._timeline = timeline
        self._host = host
        self._loop = loop
        self._random = random
        self._timeout_ns = round(timeout_s * SECOND)

    async def _answers(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        if self.is_closed:
            raise RedisConnectionError("this client is closed")
        answered: asyncio.Future[list[Any]] = self._loop.create_future()
        there_ns = self._random.randrange(self.server.way_max_ns)
        self._timeline.after(there_ns, partial(self._at_server, commands, there_ns, answered))
        return await answered

    def _at_server(
        self, commands: Sequence[Sequence[Value]], there_ns: int, answered: "asyncio.Future[Any]"
    ) -> None:
        server, host = self.server, self._host
        late_ns = max(self._timeout_ns - there_ns, 0)
        if not server.is_up:
            if server.hangs:
                host.later(late_ns, partial(fail, answered, RedisTimeoutError("no answer")))
            else:
                host.later(0, partial(fail, answered, RedisConnectionError("refused")))
            return
        answers = server.carry_out(commands)
        back_ns = self._random.randrange(server.way_max_ns)
        if back_ns > late_ns:
            host.later(late_ns, partial(fail, answered, RedisTimeoutError("no answer")))
        else:
            host.later(back_ns, partial(self._deliver, answers, server.num_lives, answered))

    def _deliver(self, answers: list[Any], life: int, answered: "asyncio.Future[Any]") -> None:
        if self.is_closed or life != self.server.num_lives:
            fail(answered, RedisConnectionError("the connection broke"))
        elif not answered.done():
            answered.set_result(answers)


class SimPipeline:
    """Commands that wait to be sent together."""

    def __init__(self, send: Callable[[Sequence[Sequence[Value]]], Any]) -> None:
        self._send = send
        self._commands: list[Sequence[Value]] = []

    def execute_command(self, *command: Value) -> None:
        """Add one."""
        self._commands.append(command)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Their answers; without `raise_on_error` an error is in place of its answer."""
        answers: list[Any] = await self._send(self._commands)
        if raise_on_error:
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        return answers


def _encoded(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else str(value).encode()


def _copied(keys: Mapping[bytes, Stored]) -> dict[bytes, Stored]:
    return {key: value if isinstance(value, bytes) else value.copy() for key, value in keys.items()}
