"""Detects the death of a lease's holder long before the lease expires.

A spare polls the holder, on a subject that only the holder serves. If that has no subscription, the
bus itself says so: the holder's connection is gone, so it cannot act any more. That is proof if the
holder has answered on this connection before; otherwise it may just be reconnecting, as after a
restart of the bus, and gets time. A timeout proves nothing: the holder may be busy.
"""

from shared.lease.core.effects import Stored

SURE_AFTER = 2  # missing subscriptions in a row: one may be just being renewed


class HolderWatch:
    """What a spare knows about the holder, in addition to the store.

    Args:
        probe_ns: time between two polls.
        return_ns: how long the subscription must be missing until a holder that never answered on
            this connection counts as gone.
    """

    def __init__(self, *, probe_ns: int, return_ns: int) -> None:
        self._probe_ns = probe_ns
        self._return_ns = return_ns
        self._instance: str | None = None  # None: no lease is stored
        self._was_cut = False
        self._has_answered = False
        self._num_missing = 0
        self._missing_since_ns = 0
        self._probe_at_ns = 0
        self._is_asking = False

    def on_news(self, stored: Stored) -> None:
        """The store has a new revision: its writer was alive."""
        instance = None if stored.lease is None else stored.lease.instance
        if instance != self._instance:
            self._instance, self._has_answered = instance, False
        self._num_missing = 0

    def on_cut(self) -> None:
        """The own connection broke: the holder's may have broken, too, and needs time to return."""
        self._was_cut, self._has_answered = True, False
        self._num_missing = 0

    def on_standstill(self) -> None:
        """This process, and perhaps its whole machine, was paused: count again."""
        self._num_missing = 0

    def on_answer(self, instance: str | None, now_ns: int) -> None:
        """`instance` answers that it holds the lease; None: there is no subscription."""
        self._answered(now_ns)
        if instance is not None:
            self._num_missing = 0
            self._has_answered = self._has_answered or instance == self._instance
            return
        if self._num_missing == 0:
            self._missing_since_ns = now_ns
        self._num_missing += 1

    def on_silence(self, now_ns: int) -> None:
        """The poll timed out, also without an answer of the bus."""
        self._answered(now_ns)
        self._num_missing = 0

    def is_gone(self, now_ns: int) -> bool:
        """Whether the holder counts as gone."""
        if self._num_missing < SURE_AFTER:
            return False
        is_first_start = self._instance is None and not self._was_cut
        is_proven = self._has_answered or is_first_start
        return is_proven or now_ns - self._missing_since_ns >= self._return_ns

    def ask(self, now_ns: int) -> bool:
        """Whether to poll now; the result is reported by `on_answer` or `on_silence`."""
        if self._is_asking or now_ns < self._probe_at_ns:
            return False
        self._is_asking = True
        return True

    @property
    def ask_at_ns(self) -> int | None:
        """When to poll next; None while a poll is pending."""
        return None if self._is_asking else self._probe_at_ns

    def _answered(self, now_ns: int) -> None:
        self._is_asking = False
        self._probe_at_ns = now_ns + self._probe_ns
