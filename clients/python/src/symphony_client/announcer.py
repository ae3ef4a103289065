"""Hints that do not block: queued by the caller, sent by a thread of their own.

The caller is never blocked and sees no error. What went wrong is in `Announcer.counts`
and in the log.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import random
from typing import Self

from symphony_client.core.backoff import LONGEST_S, Backoff
from symphony_client.core.calls import advise, invalidate
from symphony_client.core.pending import Counts, Order, Pending
from symphony_client.errors import (
    BadAnswer,
    InvalidRequest,
    NotFound,
    SymphonyError,
    Unauthorized,
    Unsupported,
)
from symphony_client.messages import Advisory
from symphony_client.transports.base import AsyncTransport

log = logging.getLogger(__name__)

LINGER_S = 0.01
WAITING_MAX = 256
GOING_MAX = 8
SEND_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 1.0
REFUSALS = (InvalidRequest, NotFound, Unsupported)  # of this one hint: others may do
HOPELESS = (BadAnswer, Unauthorized)  # until a user corrects something


class Announcer:
    """Takes hints from any thread and any event loop, and sends them from a thread of its own,
    which starts with the first. Close it, or use it as a context manager.

    Args:
        transport: its own: it is used from the thread's event loop alone, and closed with it.
        linger_s: how long a hint waits for what may make it needless, such as the turn itself.
        waiting_max: how many may wait; of more the oldest is dropped, since the newest is the one
            that is still in time.
        timeout_s: how long one may take, whatever the deployment does.
        clock: seconds that do not go back; by it hints linger, and deployments are left alone.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        *,
        linger_s: float = LINGER_S,
        waiting_max: int = WAITING_MAX,
        timeout_s: float = SEND_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._timeout_s = timeout_s
        self._pending = Pending(linger_s=linger_s, waiting_max=waiting_max)
        self._backoff = Backoff(random)
        self._lock = threading.Lock()  # of all but the transport; nothing is logged with it
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._is_closed = False
        self._has_ended = False
        self._ends_at_s: float | None = None
        self._num_flushing = 0

    @property
    def counts(self) -> Counts:
        """What became of all hints so far."""
        with self._lock:
            return self._pending.counts.copy()

    @property
    def is_away(self) -> bool:
        """The deployment did not take the last hint: few are tried until it does."""
        with self._lock:
            return self._backoff.is_away

    def announce(self, advisory: Advisory) -> None:
        """A turn is coming. Of one session the latest word counts."""
        dropped = None
        with self._lock:
            if self._may_take():
                dropped = self._pending.announce(advisory, self._clock())
                self._wake_up()
        _log_dropped(dropped)

    def is_waiting(self, session_id: str) -> bool:
        """A hint of it has not gone yet, and would be replaced by another."""
        with self._lock:
            return self._pending.is_waiting(session_id)

    def take_back(self, session_id: str) -> None:
        """A turn that was announced will not come."""
        dropped = None
        with self._lock:
            if self._may_take():
                dropped = self._pending.take_back(session_id, self._clock())
                self._wake_up()
        _log_dropped(dropped)

    def withdraw(self, session_id: str) -> None:
        """The turn is here: a hint of it that still waits would only come after it, and announce
        the one after that.
        """
        with self._changed:
            self._pending.withdraw(session_id)
            self._changed.notify_all()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until nothing waits any more, for tests and at the end of scripts; whether that was
        so in time. Hints do not linger meanwhile. It blocks: not for event loops.
        """
        with self._changed:
            self._num_flushing += 1
            self._wake_up()
            try:
                self._changed.wait_for(lambda: self._is_idle() or self._has_ended, timeout_s)
                return self._is_idle()
            finally:
                self._num_flushing -= 1

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what waits, for so long at most, and end. What comes later is counted, no more. It
        may be called again, from any thread.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._ends_at_s = self._clock() + timeout_s
            thread = self._thread
            self._wake_up()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s + self._timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _may_take(self) -> bool:
        """With the lock: whether it is open. Starts the thread."""
        if self._is_closed:
            self._pending.counts.late += 1
            return False
        if self._thread is None:
            thread = threading.Thread(
                target=self._run_thread, name="symphony-announcer", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # there are too many, or the interpreter ends
                self._pending.counts.late += 1
                return False
            self._thread = thread
        return True

    def _wake_up(self) -> None:
        """With the lock. Before the thread has its loop it looks by itself."""
        if self._loop is not None and self._wake is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    def _is_idle(self) -> bool:
        """With the lock."""
        return not self._pending.num_waiting and not self._pending.num_going

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception:  # of the shell itself: the agent goes on without hints
            log.exception("announcing has ended")

    async def _run(self) -> None:
        wake = asyncio.Event()
        with self._lock:
            self._loop, self._wake = asyncio.get_running_loop(), wake
        sends: set[asyncio.Task[None]] = set()
        try:
            await self._send_all(wake, sends)
        finally:
            with self._changed:
                self._is_closed = self._has_ended = True
                self._loop = self._wake = None  # before it is closed: it is woken from outside
                self._changed.notify_all()
            for task in sends:
                task.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
            async with asyncio.timeout(self._timeout_s):
                await self._transport.close()

    async def _send_all(self, wake: asyncio.Event, sends: set[asyncio.Task[None]]) -> None:
        """Until it is closed."""
        while True:
            wake.clear()
            with self._changed:
                orders, wait_s = self._next_orders()
                self._changed.notify_all()  # some may have become stale
            if orders is None:
                return
            for order in orders:
                task = asyncio.create_task(self._send(order))
                sends.add(task)
                task.add_done_callback(sends.discard)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await wake.wait()

    def _next_orders(self) -> tuple[list[Order] | None, float | None]:
        """With the lock: what to send now, and when to look again unless something happens; None
        for the former: the end.
        """
        now_s = self._clock()
        pause_s = self._backoff.wait_s(now_s)
        end_s = None if self._ends_at_s is None else self._ends_at_s - now_s
        if end_s is not None and (end_s <= 0 or pause_s or self._is_idle()):
            return None, None
        going_max = 1 if self._backoff.is_away else GOING_MAX
        room = 0 if pause_s else max(going_max - self._pending.num_going, 0)
        is_hurried = self._num_flushing > 0 or self._is_closed
        orders = self._pending.due(now_s, room, is_hurried=is_hurried)
        next_at_s = self._pending.next_at_s()
        waits = [] if next_at_s is None or not room else [max(next_at_s - now_s, 0.0)]
        if pause_s and self._pending.num_waiting:
            waits.append(pause_s)
        if end_s is not None:
            waits.append(end_s)
        return orders, min(waits, default=None)

    async def _send(self, order: Order) -> None:
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                if order.advisory is None:
                    await self._transport.send(invalidate(order.session_id))
                else:
                    await self._transport.send(advise(order.advisory))
        except Exception as caught:  # whatever a transport does, the agent goes on
            error = caught
        with self._changed:
            self._pending.done(order.session_id)
            level, pause_s = self._count(order, error)
            self._changed.notify_all()
            self._wake_up()
        if error is not None and level:
            why = str(error) or type(error).__name__
            log.log(
                level, "session %s: a hint is lost, the next may go in %.1f s: %s",
                order.session_id, pause_s, why,
            )  # fmt: skip

    def _count(self, order: Order, error: Exception | None) -> tuple[int, float]:
        """With the lock: what became of one; how loudly to say so, and how long nothing goes. Each
        kind of trouble is said aloud once, for as long as it lasts.
        """
        counts = self._pending.counts
        if error is None or (order.advisory is None and isinstance(error, NotFound)):
            counts.sent += 1
            self._backoff.on_success()
            return logging.NOTSET, 0.0
        if isinstance(error, REFUSALS):
            counts.refused += 1
            self._backoff.on_success()  # the deployment is there
            return logging.WARNING if counts.refused == 1 else logging.DEBUG, 0.0
        counts.failed += 1
        was_away = self._backoff.is_away
        asked_s = error.retry_after_s if isinstance(error, SymphonyError) else None
        if isinstance(error, HOPELESS):
            asked_s = LONGEST_S
        pause_s = self._backoff.on_failure(self._clock(), asked_s)
        return logging.DEBUG if was_away else logging.WARNING, pause_s


def _log_dropped(session_id: str | None) -> None:
    if session_id is not None:
        log.debug("too many hints wait: that of session %s is dropped, the oldest", session_id)
