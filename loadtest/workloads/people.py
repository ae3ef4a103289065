"""How long people read and type, and so how long before a message they would announce it.

Speeds are those of published studies (238 words a minute read, 52 typed), each person's own around
them. Source: SYMPHONY, section 4, trace generation.
"""

from dataclasses import dataclass
from functools import cache
from random import Random

from loadtest.typing_people import SPREAD, Speeds, load_speeds

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
    speeds = _speeds()
    return Person(
        speeds.reading * rng.lognormvariate(0.0, SPREAD),
        speeds.typing * rng.lognormvariate(0.0, SPREAD),
    )


@cache
def _speeds() -> Speeds:
    return load_speeds()


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
