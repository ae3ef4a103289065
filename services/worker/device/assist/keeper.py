"""Starts helpers and replaces those that were lost, in a thread of its own: a start takes seconds,
and a helper lives no longer than the thread that started it.
"""

import logging
import os
import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from services.worker.device.assist.channel import Channel
from services.worker.device.assist.handoff import Handoff
from services.worker.device.assist.orders import Spec
from services.worker.device.assist.process import HelperProcess
from services.worker.device.assist.restarts import Losses
from shared.errors import SymphonyError

log = logging.getLogger(__name__)

START_NS = 600_000_000_000  # for a start that compiles, behind others that do


class KeeperGone(Exception):
    """The thread that keeps helpers died: the worker is to end, and says so by itself."""


@dataclass(slots=True)
class _Place:
    losses: Losses
    helper: HelperProcess | None = None


class Keeper:
    """Thread-safe.

    Args:
        make_handoff: called in its thread.
        restart_ns: see `Losses`.
    """

    def __init__(
        self,
        spec: Spec,
        num_helpers: int,
        make_handoff: Callable[[Channel], Handoff],
        restart_ns: int,
    ) -> None:
        self._spec = spec
        self._make_handoff = make_handoff
        self._places = [_Place(Losses(restart_ns)) for _ in range(num_helpers)]
        self._changed = threading.Condition()  # guards what is in the places
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        self._hears, self._calls = os.pipe()
        self._selector.register(self._hears, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._keep, name="assist-keeper", daemon=True)
        self._thread.start()

    def ready(self) -> list[HelperProcess]:
        """Helpers that can work, in the order of their places."""
        with self._changed:
            if self._is_closed:
                return []
            helpers = [place.helper for place in self._places]
        return [each for each in helpers if each is not None and each.is_ready]

    def await_ready(self, num_helpers: int, timeout_ns: int) -> bool:
        """Wait until so many helpers can work; whether they can."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._num_ready() >= num_helpers, timeout_ns / 1e9
            )

    def check(self) -> None:
        """See that the thread is there.

        Raises:
            KeeperGone: it is not.
        """
        if not self._thread.is_alive() and not self._is_closed:
            raise KeeperGone(f"the thread {self._thread.name} is gone")

    def close(self) -> None:
        """End all helpers and the thread."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
        os.write(self._calls, b"\0")
        self._thread.join()
        self._selector.close()
        os.close(self._hears)
        os.close(self._calls)

    def _num_ready(self) -> int:
        return sum(place.helper is not None and place.helper.is_ready for place in self._places)

    def _keep(self) -> None:
        try:
            while not self._is_closed:
                for place in self._places:
                    self._see_to(place, time.monotonic_ns())
                for key, _ in self._selector.select(self._left_s()):
                    if isinstance(key.data, _Place):
                        self._hear(key.data)
        finally:
            for place in self._places:
                if place.helper is not None:
                    self._reap(place, place.helper)

    def _see_to(self, place: _Place, now_ns: int) -> None:
        helper = place.helper
        if helper is None:
            if now_ns >= place.losses.restart_at_ns:
                self._start(place)
        elif not helper.rows_max and now_ns - helper.started_at_ns > START_NS:
            helper.give_up()  # its end is noticed

    def _start(self, place: _Place) -> None:
        try:
            helper = HelperProcess.start(self._spec, self._make_handoff)
        except (OSError, SymphonyError) as error:
            log.error("no process to assist adapters", extra={"error": str(error)})
            place.losses.on_lost(time.monotonic_ns())
            place.losses.on_lost(time.monotonic_ns())  # not at once again
            return
        assert helper.process.stdout is not None
        self._selector.register(helper.process.stdout, selectors.EVENT_READ, place)
        with self._changed:
            place.helper = helper

    def _hear(self, place: _Place) -> None:
        helper = place.helper
        assert helper is not None
        if not helper.hear():
            self._reap(place, helper)
            place.losses.on_lost(time.monotonic_ns())
            log.warning("a helper of adapters ended", extra={"code": helper.process.returncode})
        else:
            fields = {"pid": helper.process.pid, "rows_max": helper.rows_max}
            log.info("a helper of adapters is ready", extra=fields)
        with self._changed:
            self._changed.notify_all()

    def _reap(self, place: _Place, helper: HelperProcess) -> None:
        with self._changed:
            place.helper = None
        assert helper.process.stdout is not None
        self._selector.unregister(helper.process.stdout)
        helper.reap()

    def _left_s(self) -> float | None:
        """Sleep until the next timer."""
        due_ns = [
            place.losses.restart_at_ns
            if place.helper is None
            else place.helper.started_at_ns + START_NS
            for place in self._places
            if place.helper is None or not place.helper.rows_max
        ]
        if not due_ns:
            return None
        return max(min(due_ns) - time.monotonic_ns(), 0) / 1e9
