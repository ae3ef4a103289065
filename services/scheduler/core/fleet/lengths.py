"""How many tokens replies have, learnt by model from those that ended."""

from dataclasses import dataclass, field

from shared.ids import ModelId

GUESSED_TOKENS = 200.0  # of a reply, until some have ended
GUESS_WEIGHT = 4.0  # replies
MEMORY = 0.99  # weight of a reply once the next one ended
NUM_BINS = 20  # by tokens: the first has one, each next one twice as many, the last has no end
MODELS_MAX = 1024


@dataclass(slots=True)
class _Lengths:
    """Of the replies that were longer than each bin's begin: how many, and their tokens."""

    numbers: list[float] = field(default_factory=lambda: [0.0] * NUM_BINS)
    tokens: list[float] = field(default_factory=lambda: [0.0] * NUM_BINS)


class ReplyLengths:
    """What is still to come of a reply: the mean of those that had as many tokens and ended later.
    Of at most `MODELS_MAX` models; the others have the guess.
    """

    def __init__(self) -> None:
        self._by_model: dict[ModelId, _Lengths] = {}

    def learn(self, model_id: ModelId, num_tokens: int) -> None:
        """A reply of so many tokens ended."""
        if num_tokens <= 0 or not model_id:
            return
        known = self._by_model.get(model_id)
        if known is None:
            if len(self._by_model) >= MODELS_MAX:
                return
            known = self._by_model[model_id] = _Lengths()
        for number in range(_bin_of(num_tokens) + 1):
            known.numbers[number] = MEMORY * known.numbers[number] + 1.0
            known.tokens[number] = MEMORY * known.tokens[number] + num_tokens

    def remaining(self, model_id: ModelId, num_generated: int = 0, max_tokens: int = 0) -> float:
        """Tokens that are still to come.

        Args:
            num_generated: so many are there.
            max_tokens: the reply has no more; 0: not known.

        >>> lengths = ReplyLengths()
        >>> lengths.remaining(ModelId("m")), lengths.remaining(ModelId("m"), 0, 16)
        (200.0, 16)
        >>> for _ in range(2000): lengths.learn(ModelId("m"), 50)
        >>> round(lengths.remaining(ModelId("m"))), round(lengths.remaining(ModelId("m"), 40))
        (56, 17)
        """
        known = self._by_model.get(model_id)
        number = _bin_of(num_generated)
        begin = (1 << number) - 1
        weight, tokens = GUESS_WEIGHT, GUESS_WEIGHT * (begin + GUESSED_TOKENS)
        if known is not None:
            weight += known.numbers[number]
            tokens += known.tokens[number]
        left = max(tokens / weight - num_generated, 1.0)
        return min(left, max(max_tokens - num_generated, 0)) if max_tokens else left


def _bin_of(num_tokens: int) -> int:
    """
    >>> _bin_of(0), _bin_of(1), _bin_of(2), _bin_of(3), _bin_of(1 << 40)
    (0, 1, 1, 2, 19)
    """
    return min((num_tokens + 1).bit_length() - 1, NUM_BINS - 1)
