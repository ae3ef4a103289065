"""Computing without kernels that are compiled: for what runs a few times, which would not pay."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IS_PLAIN: ContextVar[bool] = ContextVar("plain kernels", default=False)


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Let torch's own operators compute what is called meanwhile, on a CPU."""
    before = _IS_PLAIN.set(True)
    try:
        yield
    finally:
        _IS_PLAIN.reset(before)


def is_plain() -> bool:
    """Whether compiled kernels are to be left aside."""
    return _IS_PLAIN.get()
