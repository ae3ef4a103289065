"""Messages to bytes and back."""

import base64
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from shared.errors import MalformedMessage

M = TypeVar("M")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def prepare(kind: Any) -> None:
    """Build what `decode` needs for `kind`: up to 50 ms for a process's first type, which its first
    message should not have to wait for.
    """
    _adapter(kind)


def encode(message: object) -> bytes:
    """A message dataclass as JSON bytes."""
    return orjson.dumps(message)


def decode(kind: type[M], data: bytes) -> M:
    """Validate `data` as a message of `kind`.

    Raises:
        MalformedMessage: not JSON, or a field is missing or of the wrong type; names the field.
    """
    try:
        message: M = _adapter(kind).validate_json(data)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise MalformedMessage(f"{kind.__name__}: {where}: {first['msg']}", param=where) from None
    return message


def pack_ints(values: Sequence[int], typecode: str = "i") -> str:
    """Integers as base64 text: ``i`` is 32-bit signed (tokens, pages), ``Q`` 64-bit unsigned
    (checksums).

    >>> unpack_ints(pack_ints([1, 2, 3]))
    [1, 2, 3]
    """
    return base64.b64encode(array(typecode, values).tobytes()).decode("ascii")


def unpack_ints(text: str, typecode: str = "i") -> list[int]:
    """Inverse of `pack_ints`.

    Raises:
        MalformedMessage: not base64, or not a whole number of integers.
    """
    values = array(typecode)
    try:
        values.frombytes(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise MalformedMessage(f"packed integers: {error}") from None
    return values.tolist()
