"""Messages to bytes and back."""

import base64
from array import array
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

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


@cache
def _has_aliases(kind: type[Any]) -> bool:
    """Whether a field of `kind` has another name on the wire: ``Annotated[int, Field(alias=...)]``.
    Only a message's own fields are looked at, not those of messages inside it.
    """
    hints = get_type_hints(kind, include_extras=True)
    notes = [note for hint in hints.values() for note in getattr(hint, "__metadata__", ())]
    return any(isinstance(note, FieldInfo) and note.alias for note in notes)


def encode(message: object) -> bytes:
    """A message dataclass as JSON bytes."""
    kind = type(message)
    if is_dataclass(kind) and _has_aliases(kind):
        return _adapter(kind).dump_json(message, by_alias=True)
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
    return unpack_array(text, typecode).tolist()


def unpack_array(text: str, typecode: str = "i") -> "array[int]":
    """`unpack_ints` for many: machine integers, each of which becomes an object only when read.

    Raises:
        MalformedMessage: as `unpack_ints`.
    """
    values = array(typecode)
    try:
        values.frombytes(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise MalformedMessage(f"packed integers: {error}") from None
    return values
