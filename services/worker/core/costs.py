"""What a step costs, learnt from the steps that ran.

A pass takes ``base + per_row * decodes + per_token * prompt tokens``: linear, as the deferred
batching paper and CaraServe find. Steps of decodes alone give the first two, what a step with
prompt tokens takes beyond them gives the third. Old steps count ever less, so that the figures
follow the device, its neighbours and the growing contexts.
"""

from dataclasses import dataclass, field

DECODE_MEMORY = 0.99  # weight of a decode step once the next one came
PREFILL_MEMORY = 0.95
DECODES_MIN = 8.0  # steps to have seen before the figures are used
PREFILL_TOKENS_MIN = 256.0
ERROR_WEIGHT = 0.1
ERRORS_IN_MARGIN = 3.0


@dataclass(slots=True)
class Line:
    """A weighted least-squares line through (rows, ns), old points counting ever less."""

    weight: float = 0.0
    rows: float = 0.0
    ns: float = 0.0
    rows_rows: float = 0.0
    rows_ns: float = 0.0

    def add(self, rows: int, ns: float) -> None:
        self.weight = DECODE_MEMORY * self.weight + 1
        self.rows = DECODE_MEMORY * self.rows + rows
        self.ns = DECODE_MEMORY * self.ns + ns
        self.rows_rows = DECODE_MEMORY * self.rows_rows + rows * rows
        self.rows_ns = DECODE_MEMORY * self.rows_ns + rows * ns

    def at(self, rows: int) -> float:
        """The line's value; where the points say nothing of a slope, their mean."""
        if not self.weight:
            return 0.0
        mean_rows, mean_ns = self.rows / self.weight, self.ns / self.weight
        spread = self.rows_rows / self.weight - mean_rows * mean_rows
        if spread < 0.25:
            return mean_ns
        slope = max((self.rows_ns / self.weight - mean_rows * mean_ns) / spread, 0.0)
        return max(mean_ns + slope * (rows - mean_rows), 0.0)


@dataclass(slots=True)
class StepCosts:
    """Durations of steps to come, ns.

    Attributes:
        error: recent prefill steps took this share more or less than was predicted.
    """

    error: float = 0.0
    _decode: Line = field(default_factory=Line)
    _tokens: float = 0.0
    _tokens_ns: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether enough steps ran to predict others."""
        return self._decode.weight >= DECODES_MIN and self._tokens >= PREFILL_TOKENS_MIN

    def on_step(self, num_tokens: int, num_decodes: int, duration_ns: int) -> None:
        """A step of `num_decodes` decodes and `num_tokens` prompt tokens ran."""
        if duration_ns <= 0:
            return
        if not num_tokens:
            self._decode.add(num_decodes, duration_ns)
            return
        if self.is_known:
            error = abs(duration_ns / max(self.step_ns(num_tokens, num_decodes), 1) - 1)
            self.error += ERROR_WEIGHT * (min(error, 1.0) - self.error)
        beyond_ns = max(duration_ns - self._decode.at(num_decodes), 0.0)
        self._tokens = PREFILL_MEMORY * self._tokens + num_tokens
        self._tokens_ns = PREFILL_MEMORY * self._tokens_ns + beyond_ns

    def step_ns(self, num_tokens: int, num_decodes: int) -> int:
        """One step."""
        per_token_ns = self._tokens_ns / self._tokens if self._tokens else 0.0
        return int(self._decode.at(num_decodes) + per_token_ns * num_tokens)

    def prefill_ns(self, num_tokens: int, num_decodes: int, budget: int) -> int:
        """All the steps that `num_tokens` prompt tokens take, in chunks of `budget`, while
        `num_decodes` turns decode; with a margin for how wrong such predictions were lately."""
        num_steps = -(-num_tokens // budget)
        decode_ns = self.step_ns(0, num_decodes)
        exact_ns = self.step_ns(num_tokens, num_decodes) + (num_steps - 1) * decode_ns
        return int(exact_ns * (1 + ERRORS_IN_MARGIN * self.error))
