"""Vectors as clients ask for them: shortened, scaled, as numbers or packed."""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from services.frontend.api.bodies.oneshot import VectorBody
from shared.errors import InvalidRequest

Values = npt.NDArray[np.float32]

ORDERS = {"little": "<", "big": ">", "native": "="}


def scaled(values: Values, body: VectorBody) -> Values:
    """An embedding of the length and scale that a body asks for."""
    if body.dimensions is not None:
        return shortened(values, body.dimensions)
    return shortened(values, len(values)) if body.normalize or body.use_activation else values


def shortened(values: Values, dimensions: int) -> Values:
    """The first `dimensions` of an embedding, scaled to length 1; all zeros stay so.

    >>> shortened(np.array([3, 4, 12], np.float32), 2).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    first = values[:dimensions].astype(np.float64)
    length = float(np.linalg.norm(first))
    return (first / (length or 1.0)).astype("<f4")


def written(values: Values, body: VectorBody) -> Any:
    """Values as an answer holds them.

    Raises:
        InvalidRequest: one is too large for the type that is asked for.
    """
    if body.encoding_format != "base64":
        return values
    return packed(values, body.embed_dtype or "float32", body.endianness or "native")


def packed(values: Values, dtype: str = "float32", endianness: str = "little") -> str:
    """Base64 of values in a type of numbers and an order of bytes.

    Raises:
        InvalidRequest: one is too large for the type.

    >>> packed(np.array([1.0], np.float32), "bfloat16", "big")
    'P4A='
    """
    order = ORDERS[endianness]
    if dtype == "bfloat16":
        bits = values.astype("<f4").view("<u4").astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
        is_whole = bool(((rounded & 0x7F80) != 0x7F80).all())
        made = rounded.astype(order + "u2")
    else:
        with np.errstate(over="ignore"):
            made = values.astype(order + ("f2" if dtype == "float16" else "f4"))
        is_whole = bool(np.isfinite(made).all())
    if not is_whole:
        raise InvalidRequest(f"embed_dtype: a value is too large for {dtype}", "embed_dtype")
    return base64.b64encode(made.tobytes()).decode("ascii")
