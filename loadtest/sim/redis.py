"""Redis in memory, with faults: its commands, as far as services use them, their Lua scripts, and
clients as redis-py has them.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from functools import partial
from random import Random
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from loadtest.sim.loop import LoopHost, SimLoop
from loadtest.sim.lua import scripts
from loadtest.sim.timeline import MS, SECOND, Timeline

T = TypeVar("T", dict[bytes, bytes], dict[bytes, float], set[bytes])

WALL_START_NS = 1_800_000_000 * SECOND
WAY_MAX_NS = MS  # a command's, and an answer's
SCAN_CHUNK = 10
LOCATION_PREFIX = "symphony:kv:"
COMMANDS = {
    "_time", "_info", "_bgrewriteaof", "_del", "_exists", "_expire", "_ttl",
    "_get", "_mget", "_set", "_strlen", "_getrange", "_bitfield",
    "_hget", "_hmget", "_hgetall", "_hvals", "_hset", "_hdel", "_hexists", "_hstrlen", "_hincrby",
    "_sadd", "_srem", "_smembers", "_zadd", "_zincrby", "_zrem", "_zcard", "_zscore", "_zcount",
    "_zrange", "_zrevrange", "_zrangebyscore", "_zremrangebyscore",
}  # fmt: skip
DENIED_WHEN_FULL = {
    b"SET", b"HSET", b"HINCRBY", b"SADD", b"ZADD", b"ZINCRBY", b"BITFIELD",
}  # fmt: skip
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
FULL = "OOM command not allowed when used memory > 'maxmemory'."
PERSISTENCE = {
    "aof_enabled": 1,
    "aof_rewrite_in_progress": 0,
    "aof_rewrite_scheduled": 0,
    "rdb_bgsave_in_progress": 0,
}

Value = str | bytes | int | float
Stored = bytes | dict[bytes, bytes] | dict[bytes, float] | set[bytes]


class RedisServer:
    """Keys with expiries, and commands on them.

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
        self._wall_ns = wall_ns
        self.is_up = True
        self.hangs = False
        self.takes_writes = True
        self.way_max_ns = WAY_MAX_NS
        self.num_lives = 0
        self._keys: dict[bytes, Stored] = {}
        self._expires: dict[bytes, int] = {}
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

    def names(self) -> list[bytes]:
        """Keys that have not expired."""
        return [key for key in list(self._keys) if self._find(key) is not None]

    def hash_of(self, key: str) -> dict[bytes, bytes]:
        """Fields of a hash; none if it is not there."""
        return dict(self._of(key.encode(), dict))

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

    def _perform(self, name: bytes, *arguments: bytes) -> Any:
        name = name.upper()
        if name in DENIED_WHEN_FULL:
            if not self.takes_writes and not self._has_written:
                raise ResponseError(FULL)
            self._has_written = True
        return _COMMANDS[name](self, *arguments)

    def _eval(self, arguments: Sequence[bytes]) -> Any:
        text, num_keys, *rest = arguments
        num = int(num_keys)
        self._has_written = False
        return scripts().run(text.decode(), rest[:num], rest[num:], self._perform)

    def _find(self, key: bytes) -> Stored | None:
        expires_ns = self._expires.get(key)
        if expires_ns is not None and expires_ns <= self._wall_ns():
            self._delete(key)
        return self._keys.get(key)

    def _of(self, key: bytes, kind: type[T]) -> T:
        """What stands there, or something empty that is not stored."""
        found = self._find(key)
        if found is None:
            return kind()
        if not isinstance(found, kind):
            raise ResponseError(WRONG_TYPE)
        return found

    def _made(self, key: bytes, kind: type[T]) -> T:
        """What stands there, or something empty that is."""
        found = self._of(key, kind)
        if not found:
            self._keys[key] = found
        return found

    def _drop_empty(self, key: bytes) -> None:
        if not self._keys.get(key, True):
            self._delete(key)

    def _delete(self, key: bytes) -> None:
        del self._keys[key]
        self._expires.pop(key, None)

    def _string(self, key: bytes) -> bytes | None:
        found = self._find(key)
        if found is not None and not isinstance(found, bytes):
            raise ResponseError(WRONG_TYPE)
        return found

    def _time(self) -> Any:
        us = self._wall_ns() // 1000
        return [b"%d" % (us // 1_000_000), b"%d" % (us % 1_000_000)]

    def _info(self, section: bytes) -> Any:
        if section.lower() == b"persistence":
            return dict(PERSISTENCE)
        return b"# Memory\r\nused_memory:1048576\r\nmaxmemory:0\r\n"

    def _get(self, key: bytes) -> Any:
        return self._string(key)

    def _mget(self, *keys: bytes) -> Any:
        found = map(self._find, keys)
        return [each if isinstance(each, bytes) else None for each in found]

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        words = iter(option.upper() for option in options)
        expires_ns = None
        for word in words:
            if word == b"NX":
                if self._find(key) is not None:
                    return None
            else:
                unit_ns = {b"EX": SECOND, b"PX": MS}[word]
                expires_ns = self._wall_ns() + int(next(words)) * unit_ns
        self._keys[key] = value
        self._expires.pop(key, None)
        if expires_ns is not None:
            self._expires[key] = expires_ns
        return True

    def _del(self, *keys: bytes) -> Any:
        found = [key for key in keys if self._find(key) is not None]
        for key in found:
            self._delete(key)
        return len(found)

    def _exists(self, *keys: bytes) -> Any:
        return sum(self._find(key) is not None for key in keys)

    def _expire(self, key: bytes, seconds: bytes) -> Any:
        if self._find(key) is None:
            return 0
        self._expires[key] = self._wall_ns() + int(seconds) * SECOND
        return 1

    def _ttl(self, key: bytes) -> Any:
        if self._find(key) is None:
            return -2
        if (expires_ns := self._expires.get(key)) is None:
            return -1
        return round((expires_ns - self._wall_ns()) / SECOND)

    def _strlen(self, key: bytes) -> Any:
        return len(self._string(key) or b"")

    def _getrange(self, key: bytes, start: bytes, end: bytes) -> Any:
        return (self._string(key) or b"")[int(start) : int(end) + 1]

    def _bitfield(self, key: bytes, verb: bytes, kind: bytes, slot: bytes, *value: bytes) -> Any:
        """Counters of 32 bits without a sign, by their number."""
        assert kind == b"u32" and slot.startswith(b"#")
        start, text = 4 * int(slot[1:]), self._string(key) or b""
        before = int.from_bytes(text[start : start + 4].ljust(4, b"\0"))
        if verb == b"SET":
            text = text.ljust(start + 4, b"\0")
            stands = int(value[0]).to_bytes(4)
            self._keys[key] = text[:start] + stands + text[start + 4 :]
        return [before]

    def _hget(self, key: bytes, field: bytes) -> Any:
        return self._of(key, dict).get(field)

    def _hmget(self, key: bytes, *fields: bytes) -> Any:
        return [self._of(key, dict).get(field) for field in fields]

    def _hgetall(self, key: bytes) -> Any:
        return dict(self._of(key, dict))

    def _hvals(self, key: bytes) -> Any:
        return [*self._of(key, dict).values()]

    def _hset(self, key: bytes, *pairs: bytes) -> Any:
        fields: dict[bytes, bytes] = self._made(key, dict)
        before = len(fields)
        fields.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(fields) - before

    def _hdel(self, key: bytes, *names: bytes) -> Any:
        fields: dict[bytes, bytes] = self._of(key, dict)
        num = sum(fields.pop(name, None) is not None for name in names)
        self._drop_empty(key)
        return num

    def _hexists(self, key: bytes, field: bytes) -> Any:
        return int(field in self._of(key, dict))

    def _hstrlen(self, key: bytes, field: bytes) -> Any:
        return len(self._of(key, dict).get(field, b""))

    def _hincrby(self, key: bytes, field: bytes, by: bytes) -> Any:
        fields: dict[bytes, bytes] = self._made(key, dict)
        value = int(fields.get(field, 0)) + int(by)
        fields[field] = b"%d" % value
        return value

    def _sadd(self, key: bytes, *members: bytes) -> Any:
        stored = self._made(key, set)
        before = len(stored)
        stored.update(members)
        return len(stored) - before

    def _srem(self, key: bytes, *members: bytes) -> Any:
        stored = self._of(key, set)
        before = len(stored)
        stored.difference_update(members)
        num = before - len(stored)
        self._drop_empty(key)
        return num

    def _smembers(self, key: bytes) -> Any:
        return set(self._of(key, set))

    def _zadd(self, key: bytes, *pairs: bytes) -> Any:
        scores: dict[bytes, float] = self._made(key, dict)
        before = len(scores)
        scores.update(zip(pairs[1::2], map(float, pairs[::2]), strict=True))
        return len(scores) - before

    def _zincrby(self, key: bytes, by: bytes, member: bytes) -> Any:
        scores: dict[bytes, float] = self._made(key, dict)
        scores[member] = scores.get(member, 0.0) + float(by)
        return _score(scores[member])

    def _zrem(self, key: bytes, *members: bytes) -> Any:
        return self._hdel(key, *members)

    def _zcard(self, key: bytes) -> Any:
        return len(self._of(key, dict))

    def _zscore(self, key: bytes, member: bytes) -> Any:
        scores: dict[bytes, float] = self._of(key, dict)
        return _score(scores[member]) if member in scores else None

    def _zrange(self, key: bytes, start: bytes, end: bytes, *options: bytes) -> Any:
        return _ranked(self._ordered(key), start, end, options)

    def _zrevrange(self, key: bytes, start: bytes, end: bytes, *options: bytes) -> Any:
        return _ranked(self._ordered(key)[::-1], start, end, options)

    def _zrangebyscore(self, key: bytes, low: bytes, high: bytes, *limit: bytes) -> Any:
        found = [member for member, score in self._ordered(key) if _within(score, low, high)]
        if limit:
            start, num = int(limit[1]), int(limit[2])
            found = found[start : start + num]
        return found

    def _zcount(self, key: bytes, low: bytes, high: bytes) -> Any:
        return len(self._zrangebyscore(key, low, high))

    def _zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> Any:
        return self._hdel(key, *self._zrangebyscore(key, low, high))

    def _bgrewriteaof(self) -> Any:
        return True

    def _ordered(self, key: bytes) -> list[tuple[bytes, float]]:
        scores: dict[bytes, float] = self._of(key, dict)
        return sorted(scores.items(), key=lambda pair: (pair[1], pair[0]))


_COMMANDS: Mapping[bytes, Callable[..., Any]] = {
    name[1:].upper().encode(): method
    for name, method in vars(RedisServer).items()
    if name in COMMANDS
}


def server_on(timeline: Timeline) -> RedisServer:
    """One whose clock is the timeline's."""
    return RedisServer(lambda: WALL_START_NS + timeline.now_ns)


class SimRedis:
    """A client of one life of a process: as much of `redis.asyncio.Redis` as services use.

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
        self._server = server
        self._timeline = timeline
        self._host = host
        self._loop = loop
        self._random = random
        self._timeout_ns = round(timeout_s * SECOND)
        self._is_closed = False

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
        self._is_closed = True

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
        found = [key for key in self._server.names() if fnmatchcase(key.decode(), match)]
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
        if self._is_closed:
            raise RedisConnectionError("this client is closed")
        answered: asyncio.Future[list[Any]] = self._loop.create_future()
        there_ns = self._random.randrange(self._server.way_max_ns)
        self._timeline.after(there_ns, partial(self._at_server, commands, there_ns, answered))
        return await answered

    def _at_server(
        self, commands: Sequence[Sequence[Value]], there_ns: int, answered: "asyncio.Future[Any]"
    ) -> None:
        server, host = self._server, self._host
        late_ns = max(self._timeout_ns - there_ns, 0)
        if not server.is_up:
            if server.hangs:
                host.later(late_ns, partial(_fail, answered, RedisTimeoutError("no answer")))
            else:
                host.later(0, partial(_fail, answered, RedisConnectionError("refused")))
            return
        answers = [self._carried_out(command) for command in commands]
        back_ns = self._random.randrange(server.way_max_ns)
        if back_ns > late_ns:
            host.later(late_ns, partial(_fail, answered, RedisTimeoutError("no answer")))
        else:
            host.later(back_ns, partial(self._deliver, answers, server.num_lives, answered))

    def _carried_out(self, command: Sequence[Value]) -> Any:
        try:
            return self._server.execute(*command)
        except ResponseError as error:
            return error

    def _deliver(self, answers: list[Any], life: int, answered: "asyncio.Future[Any]") -> None:
        if self._is_closed or life != self._server.num_lives:
            _fail(answered, RedisConnectionError("the connection broke"))
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


def _fail(answered: "asyncio.Future[Any]", error: Exception) -> None:
    if not answered.done():
        answered.set_exception(error)


def _encoded(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else str(value).encode()


def _copied(keys: Mapping[bytes, Stored]) -> dict[bytes, Stored]:
    return {key: value if isinstance(value, bytes) else value.copy() for key, value in keys.items()}


def _score(score: float) -> bytes:
    return b"%d" % score if math.isfinite(score) and score == int(score) else b"%.17g" % score


def _within(score: float, low: bytes, high: bytes) -> bool:
    return float(low) <= score <= float(high)


def _ranked(
    ordered: list[tuple[bytes, float]], start: bytes, end: bytes, options: Sequence[bytes]
) -> list[bytes]:
    """Members between two ranks, the last one included; negative ones count from the end."""
    first, last = (each if each >= 0 else len(ordered) + each for each in (int(start), int(end)))
    found = ordered[max(first, 0) : last + 1]
    if not options:
        return [member for member, _ in found]
    return [part for member, score in found for part in (member, _score(score))]
