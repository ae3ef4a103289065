"""What is asked of a deployment: so many people, with so long a history, answered so fast."""

from dataclasses import dataclass
from math import exp

from loadtest.workloads.people import TOKENS_A_WORD

READING_WPM, TYPING_WPM = 238.0, 52.0  # of the studies that the workloads take
TYPED_WORDS, TYPED_SPREAD = 11.0, 0.63  # median and spread of the workloads' written dialogues
REPLY_SPREAD = 0.5  # of the logarithm of a reply's length
SPEED_SPREAD = 0.35  # of the logarithm of a person's speed, as in the workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Attributes:
    users: people who chat at once.
    context: tokens of history that the median turn has.
    reply: tokens of the median answer.
    hinted: share of turns that are announced at the first letter.
    tokens_max: that a prompt and its answer may have together; no less than `tokens_least`.
    """

    users: int
    context: int
    reply: int = 250
    hinted: float = 1.0
    tokens_max: int = 131_072

    @property
    def new_tokens(self) -> float:
        """Of a message, in the mean."""
        return TYPED_WORDS * TOKENS_A_WORD * _mean_over_median(TYPED_SPREAD)

    @property
    def reply_tokens(self) -> float:
        """Of an answer, in the mean."""
        return self.reply * _mean_over_median(REPLY_SPREAD)

    @property
    def think_s(self) -> float:
        """From an answer's end to the next message, in the mean: reading, then typing."""
        spread = _mean_over_median(SPEED_SPREAD)
        reading_s = self.reply_tokens / TOKENS_A_WORD / READING_WPM * 60 * spread
        typing_s = self.new_tokens / TOKENS_A_WORD / TYPING_WPM * 60 * spread
        return reading_s + typing_s

    @property
    def tokens_least(self) -> int:
        """That the model must take for the median turn with a message and an answer of double the
        usual length."""
        return self.context + round(2 * (self.new_tokens + self.reply))

    @property
    def history_range(self) -> tuple[int, int]:
        """Shortest and longest history. Sessions grow through it at the same pace, so half of all
        turns have less than `context`: from nothing to its double, or as far as the model goes.
        """
        room = round(2 * (self.new_tokens + self.reply))
        longest = max(min(2 * self.context, self.tokens_max - room), self.context)
        return 2 * self.context - longest, longest


def _mean_over_median(spread: float) -> float:
    """Of a lognormal."""
    return exp(spread * spread / 2)
