"""Limits of chat templates, in the processes that render them.

A template is a program that came with a model. Jinja's sandbox keeps it from what is outside of it,
and counts what a single loop does, but not what it takes in all.
"""

import operator
import resource
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import Environment
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.runtime.dying import mapped_bytes

AGAIN_S = 0.1  # an alarm that raised where exceptions are lost is followed by others
MEMORY_BYTES_MIN = 256 * 1024**2
MEMORY_BYTES_PER_BYTE = 24  # of the request
OUTPUT_CHARS_MIN = 4 * 1024**2
OUTPUT_CHARS_PER_BYTE = 8
NUMBER_BITS_MAX = 4096  # of a product or a power
REPEATED_MAX = 4 * 1024**2  # of a text or list that is

_OPERATIONS = {"*": operator.mul, "**": operator.pow}


class TemplateTooSlow(BaseException):
    """Raised within what a template does, which nothing there catches."""


class _Limits:
    """Those of the template that is rendered now."""

    chars_max = 0
    is_timed = False


def install() -> None:
    """Have every template of this process stay within `limited`."""
    signal.signal(signal.SIGPROF, _on_alarm)
    Environment.concat = staticmethod(_concat)
    ImmutableSandboxedEnvironment.intercepted_binops = frozenset(_OPERATIONS)
    ImmutableSandboxedEnvironment.call_binop = _call_binop  # type: ignore[method-assign,assignment]


@contextmanager
def limited(input_bytes: int, cpu_s: float) -> Iterator[None]:
    """Run a template.

    Args:
        input_bytes: size of the request that it is rendered for.
        cpu_s: time that it may take of a processor; what takes longer within one operation of the
            interpreter is not ended.

    Raises:
        TemplateTooSlow: it took longer.
        MemoryError: it took more memory than a template should.
    """
    _Limits.chars_max = OUTPUT_CHARS_MIN + OUTPUT_CHARS_PER_BYTE * input_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped_bytes() + MEMORY_BYTES_MIN + MEMORY_BYTES_PER_BYTE * input_bytes
    resource.setrlimit(resource.RLIMIT_AS, (min(limit, soft) if soft > 0 else limit, hard))
    try:
        try:
            _Limits.is_timed = True
            signal.setitimer(signal.ITIMER_PROF, cpu_s, AGAIN_S)
            yield
        finally:
            _Limits.is_timed = False
    finally:
        _Limits.is_timed = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _on_alarm(*_: object) -> None:
    if _Limits.is_timed:
        raise TemplateTooSlow


def _concat(pieces: Iterable[str]) -> str:
    """What a template or a block of it writes, as far as it may."""
    kept = []
    num_left = _Limits.chars_max
    for piece in pieces:
        num_left -= len(piece)
        if num_left < 0:
            raise SecurityError(f"it writes more than {_Limits.chars_max} characters")
        kept.append(piece)
    return "".join(kept)


def _call_binop(_: Any, __: Any, name: str, left: Any, right: Any) -> Any:
    """A product or a power, unless it is so large that to compute it takes long."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length(), right.bit_length()
        if (bits[0] * abs(right) if name == "**" else sum(bits)) > NUMBER_BITS_MAX:
            raise SecurityError(f"it computes a number of more than {NUMBER_BITS_MAX} bits")
    elif name == "*":
        size = max(_size(left, right), _size(right, left))
        if size > REPEATED_MAX:
            raise SecurityError(f"it repeats something to a size of more than {REPEATED_MAX}")
    return _OPERATIONS[name](left, right)


def _size(repeated: Any, times: Any) -> int:
    is_sequence = isinstance(times, int) and isinstance(repeated, str | bytes | list | tuple)
    return len(repeated) * times if is_sequence else 0
