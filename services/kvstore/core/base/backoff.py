"""How long a host that failed is not asked again."""

from dataclasses import dataclass

RETRY_NS = 1_000_000_000  # after a first failure; twice as long after each further one
RETRY_MAX_NS = 60_000_000_000


@dataclass(slots=True)
class Backoff:
    """Failures of one, since it last did what it was asked for."""

    num_failures: int = 0
    retry_at_ns: int = 0

    def is_waiting(self, now_ns: int) -> bool:
        """Whether it is too early to try again."""
        return now_ns < self.retry_at_ns

    def on_failed(self, now_ns: int) -> None:
        """It failed again."""
        wait_ns = min(RETRY_NS << min(self.num_failures, 10), RETRY_MAX_NS)
        self.num_failures += 1
        self.retry_at_ns = now_ns + wait_ns

    def on_good(self) -> None:
        """It did what it was asked for."""
        self.num_failures = 0
