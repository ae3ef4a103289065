"""How long to leave a deployment alone that does not answer, or that asks for it."""

from collections.abc import Callable

FIRST_S = 0.25
LONGEST_S = 30.0
ASKED_MAX_S = 300.0  # a deployment may ask for more patience than we would have
FACTOR = 2.0
SPREAD = 0.5  # of a pause: so many who lost it at once do not come back at once


class Backoff:
    """Pauses that double while nothing works. The time is an argument.

    Args:
        random: uniform in [0, 1): spreads the pauses.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._pause_s = 0.0
        self._until_s = 0.0

    @property
    def is_away(self) -> bool:
        """The last that was tried did not work: try one thing at a time."""
        return self._pause_s > 0

    def wait_s(self, now_s: float) -> float:
        """How long nothing is to be sent; 0: it may be tried."""
        return max(self._until_s - now_s, 0.0)

    def on_success(self) -> None:
        """It answered."""
        self._pause_s = self._until_s = 0.0

    def on_failure(self, now_s: float, retry_after_s: float | None = None) -> float:
        """It did not, or it asked to be left alone for `retry_after_s`; how long it will be.

        What went at the same time fails at the same time: that counts once.
        """
        if self.wait_s(now_s) > 0 and retry_after_s is None:
            return self.wait_s(now_s)
        if self.wait_s(now_s) == 0:
            self._pause_s = min(max(self._pause_s * FACTOR, FIRST_S), LONGEST_S)
        own_s = self._pause_s * (1 - SPREAD * self._random())
        asked_s = min(retry_after_s or 0.0, ASKED_MAX_S)
        self._until_s = max(self._until_s, now_s + max(own_s, asked_s))
        return self.wait_s(now_s)
