"""Sees that a device's stream waits for no helper for ever.

A stream that waits for a word waits until it is written, even if its writer is dead. So a thread
watches while a pass is with helpers: one that is gone, or late, is ended, and its word written in
its place. The stream goes on with whatever is in the helper's memory, and the rows fail, as the
outcome of their order is not `DONE`.
"""

import logging
import threading
import time
from collections.abc import Iterable

from services.worker.device.assist.process import HelperProcess

log = logging.getLogger(__name__)

LOOK_S = 0.002


class WatchGone(Exception):
    """The thread that watches died: the worker is to end, and says so by itself."""


class Watch:
    """Thread-safe.

    Args:
        patience_ns: for one order, from when it is seen to be under way.
    """

    def __init__(self, patience_ns: int) -> None:
        self._patience_ns = patience_ns
        self._changed = threading.Condition()  # guards the rest
        self._helpers: dict[HelperProcess, int] = {}  # last order that each can be given
        self._freed: list[tuple[HelperProcess, int]] = []  # not known to be dead yet
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="assist-watch", daemon=True)
        self._thread.start()

    def begin(self, helpers: Iterable[HelperProcess], last: int) -> None:
        """A pass begins; its orders have numbers up to `last`."""
        with self._changed:
            self._helpers.update(dict.fromkeys(helpers, last))
            self._changed.notify_all()

    def end(self, helpers: Iterable[HelperProcess]) -> None:
        """The stream is past all orders of these."""
        with self._changed:
            for helper in helpers:
                self._helpers.pop(helper, None)

    def abandon(self, helpers: Iterable[HelperProcess]) -> None:
        """Let the stream past all orders of these; they are ended."""
        with self._changed:
            for helper in helpers:
                self._free(helper)
            self._changed.notify_all()

    def check(self) -> None:
        """See that the thread is there.

        Raises:
            WatchGone: it is not.
        """
        if not self._thread.is_alive() and not self._is_closed:
            raise WatchGone(f"the thread {self._thread.name} is gone")

    def close(self) -> None:
        """End the thread; nothing that a stream waits for is left."""
        with self._changed:
            for helper in list(self._helpers):
                self._free(helper)
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        since: dict[HelperProcess, tuple[int, int]] = {}  # order under way, and since when
        while True:
            with self._changed:
                if not (self._helpers or self._freed):
                    if self._is_closed:
                        return
                    since = {}
                    self._changed.wait()
                for helper in list(self._helpers):
                    if self._is_lost(helper, since):
                        self._free(helper)
                # What it writes in its last moment is perhaps written over the word: so again,
                # until it was dead before.
                living = [each for each in self._freed if each[0].process.poll() is None]
                for helper, last in self._freed:
                    helper.channel.let_past(last)
                self._freed = living
            time.sleep(LOOK_S)

    def _is_lost(self, helper: HelperProcess, since: dict[HelperProcess, tuple[int, int]]) -> bool:
        """Whether nothing more will come from it in time. Who sleeps over an order is woken."""
        if helper.is_gone or helper.process.poll() is not None:
            return True
        channel, now_ns = helper.channel, time.monotonic_ns()
        number = channel.asked
        if number == 0 or channel.outcome(number) is not None:
            since.pop(helper, None)
            return False
        if since.get(helper, (0, 0))[0] != number:
            since[helper] = number, now_ns
            helper.wake()
        return now_ns - since[helper][1] > self._patience_ns

    def _free(self, helper: HelperProcess) -> None:
        last = self._helpers.pop(helper, None)
        if last is None:  # it was freed before
            return
        log.warning("a helper of adapters is late or gone", extra={"pid": helper.process.pid})
        helper.give_up()
        helper.channel.let_past(last)
        self._freed.append((helper, last))
