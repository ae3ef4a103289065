"""Lua scripts as Redis runs them: production's own text, on Lua 5.1."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from redis.exceptions import ResponseError

Call = Callable[..., Any]

_LIBRARY = rb"""
local perform, fail = ...
local function call(...)
  local ok, reply = perform(...)
  if not ok then error({err = reply}, 0) end
  return reply
end
redis = {
  call = call,
  pcall = function(...)
    local ok, reply = perform(...)
    return ok and reply or (not ok and {err = reply}) or reply
  end,
  sha1hex = fail.sha1hex,
}
cjson = {decode = fail.decode}
return function(script, keys, arguments)
  return pcall(script, keys, arguments)
end
"""


class _Functions:
    """What scripts call in Python."""

    @staticmethod
    def sha1hex(text: bytes) -> bytes:
        return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()

    @staticmethod
    def decode(text: bytes) -> Any:
        return _to_lua_value(json.loads(text))


class Scripts:
    """Compiled scripts of this process; one runs at a time."""

    def __init__(self) -> None:
        from lupa.lua51 import LuaRuntime  # the simulated cluster, which runs none, needs no Lua

        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._compiled: dict[str, Any] = {}
        self._call: Call | None = None
        load = self._lua.eval(b"loadstring")
        self._run = load(_LIBRARY)(self._perform, _Functions)

    def run(self, text: str, keys: Sequence[bytes], arguments: Sequence[bytes], call: Call) -> Any:
        """The reply to ``EVAL``.

        Args:
            call: performs a command, given as bytes.

        Raises:
            ResponseError: the script failed.
        """
        script = self._compiled.get(text)
        if script is None:
            function = f"return function(KEYS, ARGV) {text}\nend".encode()
            script = self._compiled[text] = self._lua.execute(function)
        table_from, self._call = self._lua.table_from, call
        ok, *replies = self._run(script, table_from(keys), table_from(arguments))
        reply = replies[0] if replies else None
        if ok:
            return _from_lua(reply)
        raise ResponseError(_shown(reply))

    def _perform(self, *command: Any) -> tuple[bool, Any]:
        assert self._call is not None
        try:
            reply = self._call(*map(_argument, command))
        except ResponseError as error:
            return False, str(error).encode()
        return True, self._to_lua(reply)

    def _to_lua(self, reply: Any) -> Any:
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._lua.table_from([self._to_lua(each) for each in reply])
        return self._lua.table_from({b"ok": b"OK"}) if reply is True else reply

    def table(self, value: dict[bytes, Any] | list[Any]) -> Any:
        """A Lua table."""
        return self._lua.table_from(value)


@lru_cache(maxsize=1)
def scripts() -> Scripts:
    """Those of this process."""
    return Scripts()


def _argument(value: Any) -> bytes:
    """As Redis writes what a script passes to a command."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ResponseError("Lua redis lib command arguments must be strings or integers")
    return b"%d" % value if value == int(value) else f"{value:.17g}".encode()


def _from_lua(reply: Any) -> Any:
    """As Redis turns a script's value into a reply."""
    if reply is None or reply is False:
        return None
    if reply is True:
        return 1
    if isinstance(reply, int | float):
        return int(reply)
    if isinstance(reply, bytes):
        return reply
    if (error := reply[b"err"]) is not None:
        raise ResponseError(error.decode())
    if (status := reply[b"ok"]) is not None:
        return status
    replies, at = [], 1
    while (value := reply[at]) is not None:
        replies.append(_from_lua(value))
        at += 1
    return replies


def _to_lua_value(value: Any) -> Any:
    """A value of JSON."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict):
        return scripts().table({key.encode(): _to_lua_value(of) for key, of in value.items()})
    if isinstance(value, list):
        return scripts().table([_to_lua_value(each) for each in value])
    return value


def _shown(error: Any) -> str:
    """A script's error as text."""
    message = error if isinstance(error, bytes | str) else error[b"err"]
    return message.decode() if isinstance(message, bytes) else str(message)
