"""Waits for what a benchmark starts: they all have one limit, and say that they go on."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from shared.errors import PeerUnavailable

READY_TIMEOUT_S = 300.0  # in a new environment a worker compiles kernels first
SAY_EVERY_S = 5.0
# Of the benchmark that runs, as its user gave it; elsewhere the one above, and nothing is said.
_ready_timeout_s: ContextVar[float | None] = ContextVar("ready_timeout_s", default=None)


@contextmanager
def starts_limited(ready_timeout_s: float) -> Iterator[None]:
    """Limit every `Waiting` of the body, and show it."""
    token = _ready_timeout_s.set(ready_timeout_s)
    try:
        yield
    finally:
        _ready_timeout_s.reset(token)


class Waiting:
    """One such wait, from now on.

    Args:
        what: is to be so, such as ``the deployment is ready``.
    """

    def __init__(self, what: str) -> None:
        given = _ready_timeout_s.get()
        self.limit_s = given or READY_TIMEOUT_S
        self._what = what
        self._since = self._said_at = time.monotonic()
        self._is_shown = given is not None

    def check(self) -> None:
        """Call this as long as it is not so.

        Raises:
            PeerUnavailable: the time is up.
        """
        now = time.monotonic()
        passed_s = now - self._since
        if passed_s >= self.limit_s:
            hint = " (bench --ready-timeout-s waits longer)" if self._is_shown else ""
            raise PeerUnavailable(f"not within {self.limit_s:g} s: {self._what}{hint}")
        if self._is_shown and now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            text = f"waiting until {self._what}: {passed_s:.0f} s of at most {self.limit_s:g}"
            print(text, file=sys.stderr, flush=True)
