"""What a GGUF file says of itself, read without the packages that convert it.

Layout: magic, version, number of tensors and of fields; the fields; of each tensor its name, shape,
type and place. Source: the GGUF specification, versions 2 and 3, little endian.
"""

import struct
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from shared.errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _LIST = 8, 9
TEXT_BYTES_MAX = 1 << 24


def read_header(file: Path) -> dict[str, Any]:
    """Its fields by name, lists left out, and `num_weights` of all tensors together.

    Raises:
        ConfigError: not a GGUF file, or one that is cut off or of another version.
    """
    try:
        with file.open("rb") as data:
            return _read(data)
    except (OSError, OverflowError, ValueError, KeyError, struct.error) as error:
        raise ConfigError(f"--model {file}: not a GGUF file that can be read: {error}") from None


def _read(data: BinaryIO) -> dict[str, Any]:
    if data.read(4) != MAGIC:
        raise ValueError("it does not begin as one")
    version = _number(data, "I")
    if version not in VERSIONS:
        raise ValueError(f"version {version}")
    num_tensors, num_fields = _number(data, "Q"), _number(data, "Q")
    fields: dict[str, Any] = {}
    for _ in range(num_fields):
        name = _text(data)
        value = _value(data, _number(data, "I"))
        if value is not None:
            fields[name] = value
    fields["num_weights"] = sum(_weights(data) for _ in range(num_tensors))
    return fields


def _value(data: BinaryIO, kind: int) -> Any:
    """None of a list."""
    if kind == _TEXT:
        return _text(data)
    if kind != _LIST:
        return _number(data, _NUMBERS[kind])
    inner, num_items = _number(data, "I"), _number(data, "Q")
    if inner == _TEXT:
        for _ in range(num_items):
            _text(data)
    else:
        data.seek(num_items * struct.calcsize("<" + _NUMBERS[inner]), 1)
    return None


def _weights(data: BinaryIO) -> int:
    _text(data)
    shape: list[int] = [_number(data, "Q") for _ in range(_number(data, "I"))]
    data.seek(4 + 8, 1)  # its type, and where it is
    return prod(shape)


def _text(data: BinaryIO) -> str:
    num_bytes = _number(data, "Q")
    if num_bytes > TEXT_BYTES_MAX:
        raise ValueError(f"a text of {num_bytes} bytes")
    return data.read(num_bytes).decode(errors="replace")


def _number(data: BinaryIO, form: str) -> Any:
    form = "<" + form
    return struct.unpack(form, data.read(struct.calcsize(form)))[0]
