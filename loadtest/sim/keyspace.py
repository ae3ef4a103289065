"""Keys of a Redis in memory, and the commands on them that services use."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from loadtest.sim.timeline import MS, SECOND

T = TypeVar("T", dict[bytes, bytes], dict[bytes, float], set[bytes])

COMMANDS = {
    "_time", "_info", "_bgrewriteaof", "_del", "_exists", "_expire", "_ttl",
    "_get", "_mget", "_set", "_strlen", "_getrange", "_bitfield",
    "_hget", "_hmget", "_hgetall", "_hvals", "_hset", "_hdel", "_hexists", "_hstrlen", "_hincrby",
    "_sadd", "_srem", "_smembers", "_zadd", "_zincrby", "_zrem", "_zcard", "_zscore", "_zcount",
    "_zrange", "_zrevrange", "_zrangebyscore", "_zremrangebyscore",
}  # fmt: skip
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
PERSISTENCE = {
    "aof_enabled": 1,
    "aof_rewrite_in_progress": 0,
    "aof_rewrite_scheduled": 0,
    "rdb_bgsave_in_progress": 0,
}

Stored = bytes | dict[bytes, bytes] | dict[bytes, float] | set[bytes]


class Keyspace:
    """Keys with expiries, and commands on them. Replies are as RESP2 has them: bytes, an int, a
    list, None, or True for ``OK``.

    Args:
        wall_ns: the server's clock.
    """

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._keys: dict[bytes, Stored] = {}
        self._expires: dict[bytes, int] = {}

    def names(self) -> list[bytes]:
        """Keys that have not expired."""
        return [key for key in list(self._keys) if self._find(key) is not None]

    def hash_of(self, key: str) -> dict[bytes, bytes]:
        """Fields of a hash; none if it is not there."""
        return dict(self._of(key.encode(), dict))

    def reply(self, name: bytes, *arguments: bytes) -> Any:
        """What a command is answered.

        Raises:
            ResponseError: it is refused.
        """
        return _COMMANDS[name](self, *arguments)

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
    name[1:].upper().encode(): method for name, method in vars(Keyspace).items() if name in COMMANDS
}


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
