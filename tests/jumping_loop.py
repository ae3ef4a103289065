"""An event loop whose clock jumps to the next timer, for one service without sockets."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class JumpingLoop(asyncio.SelectorEventLoop):
    """Nothing is waited for: when nothing can run, time is that of the next timer."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_NoWaiting(self))

    def time(self) -> float:
        return self.now_s

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: object
    ) -> asyncio.Future[Any]:
        ended = self.create_future()
        try:
            ended.set_result(func(*args))
        except Exception as error:
            ended.set_exception(error)
        return ended


class _NoWaiting(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen again"
        self._loop.now_s += max(timeout, 0.0)
        return []


class LoopClock:
    """The loop's time, as clocks give it."""

    def now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1e9)

    def wall_ns(self) -> int:
        return self.now_ns() + 1_700_000_000_000_000_000
