"""What goes over the pipes between the frontend and a child.

The frontend is trusted and pickles. What a child sends back is not unpickled: it runs templates on
values of requests.
"""

import pickle
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Operation = Literal["names", "render", "encode", "decode", "echo"]

TEMPLATE_OPERATIONS: tuple[Operation, ...] = ("names", "render")

LENGTH = struct.Struct("<I")
HEAD = struct.Struct("<cI")
ANSWER_BYTES_MAX = 1024**3  # more means that the child is broken

READY = b"R"  # the child has started
BEGUN = b"B"  # it has the tokenizer and works
TEXT = b"T"
OPEN = b"O"  # a grammar whose objects may have keys of any name
TOKENS = b"I"
ECHO = b"E"
COUNT = b"C"  # there are more tokens than are of use: how many
REFUSED = b"X"  # by the template, or by the tokenizer: the request is at fault
SLOW = b"S"  # the template takes too long
UNLOADED = b"U"  # the tokenizer cannot be loaded


@dataclass(frozen=True, slots=True)
class Task:
    """Attributes:
    tokenizer: what the frontend calls it; one that is loaded again has another name.
    source: where its files are.
    template_cpu_s: how long the model's template may run, if it does.
    """

    tokenizer: str
    source: str
    operation: Operation
    arguments: tuple[Any, ...]
    template_cpu_s: float


def pack_task(task: Task) -> bytes:
    """As it goes to the child."""
    fields = task.tokenizer, task.source, task.operation, task.arguments, task.template_cpu_s
    data = pickle.dumps(fields, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


def unpack_task(data: bytes) -> Task:
    """Inverse of `pack_task`, without the length."""
    return Task(*pickle.loads(data))  # from our own parent


def pack_answer(kind: bytes, data: bytes = b"") -> bytes:
    """As it comes back."""
    return HEAD.pack(kind, len(data)) + data


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Int32, in the machine's order."""
    return array("i", tokens).tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """Inverse of `pack_tokens`."""
    tokens = array("i")
    tokens.frombytes(data)
    return tokens.tolist()


def pack_echo(text: str, starts: Sequence[int]) -> bytes:
    """A text, and where each of its tokens starts.

    >>> unpack_echo(pack_echo("ab", [0, 1]))
    ('ab', [0, 1])
    """
    return LENGTH.pack(len(starts)) + pack_tokens(starts) + text.encode()


def unpack_echo(data: bytes) -> tuple[str, list[int]]:
    """Inverse of `pack_echo`."""
    end = LENGTH.size + 4 * LENGTH.unpack_from(data)[0]
    return data[end:].decode(), unpack_tokens(data[LENGTH.size : end])
