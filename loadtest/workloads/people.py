"""How long people read and type, and so how long before a message they would announce it.

Speeds are those of published studies (238 words a minute read, 52 typed), each person's own around
them. Source: SYMPHONY, section 4, trace generation.
"""

from dataclasses import dataclass
from functools import cache
from random import Random

from loadtest.workloads.traces import rows_of

SPEEDS = "human_speeds.csv"
READING = "silent reading, English non-fiction"
TYPING = "typing, desktop keyboard (transcription)"
SPREAD = 0.35  # of the logarithm of a person's speed: most read 175 to 300 words a minute
THINKING_S = 17.0  # the tenth percentile of BurstGPT's pauses, on top of reading; mean
DELETED_SHARE = 0.35  # of beginnings that are deleted again
TAKEN_BACK_SHARE = 0.5  # of those: the page takes its advisory back
TOKENS_A_WORD = 4 / 3  # of English text: OpenAI's rule of thumb
NS_A_MINUTE = 60_000_000_000


@dataclass(frozen=True, slots=True)
class Person:
    """Words a minute."""

    reading: float
    typing: float

    def reading_ns(self, num_tokens: int) -> int:
        """Of an answer."""
        return round(num_tokens / TOKENS_A_WORD / self.reading * NS_A_MINUTE)

    def typing_ns(self, num_words: int) -> int:
        """Of a message."""
        return round(num_words / self.typing * NS_A_MINUTE)


def draw_person(rng: Random) -> Person:
    """One person."""
    speeds = load_speeds()
    return Person(
        speeds.reading * rng.lognormvariate(0.0, SPREAD),
        speeds.typing * rng.lognormvariate(0.0, SPREAD),
    )


@cache
def load_speeds() -> Person:
    """As the studies found them."""
    found = {row["quantity"]: row["mean"] for row in rows_of(SPEEDS)}
    return Person(float(found[READING]), float(found[TYPING]))


def tokens_of(num_words: int) -> int:
    """At least one.

    >>> tokens_of(9), tokens_of(0)
    (12, 1)
    """
    return max(round(num_words * TOKENS_A_WORD), 1)


def words_of(num_tokens: int) -> int:
    """At least one.

    >>> words_of(12), words_of(1)
    (9, 1)
    """
    return max(round(num_tokens / TOKENS_A_WORD), 1)
