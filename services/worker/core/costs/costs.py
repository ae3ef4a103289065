"""What a step costs, learnt from the steps that ran.

A pass takes ``base + per_row * decodes + per_byte * bytes of different adapters + per_token *
prompt tokens``: linear, as the deferred batching paper and CaraServe find. Steps of decodes alone
give the first three, what a step with prompt tokens takes beyond them gives the last. Where prompts
never end there are none of decodes alone, and what such a step takes beyond its prompt tokens goes
to the decodes. Old steps count ever less, so that the figures follow the device, its neighbours and
the growing contexts.
"""

from dataclasses import dataclass, field

from services.worker.core.costs.step_models import NO_LORA, LoraLoad, StepModels

DECODE_MEMORY = 0.99  # weight of a decode step once the next one came
PREFILL_MEMORY = 0.95
DECODES_MIN = 8.0  # steps to have seen before the figures are used
PREFILL_TOKENS_MIN = 256.0
SPREAD_MIN = 0.25  # of the rows seen, before a slope is believed
OWN_SHARE_MIN = 1e-3  # of what else adds, that does not go along with the rows
MIXED_STEPS = 32  # without one of decodes alone, until they tell as much as those would
ROW_SHARE = 0.005  # of a step without rows, that a row adds, as long as all batches seen are alike
ERROR_WEIGHT = 0.1
ERRORS_IN_MARGIN = 3.0


@dataclass(slots=True)
class Line:
    """Weighted least squares of ns on rows, old points counting ever less; and on what else may
    add to them, `extra`, as far as that does not go along with the rows anyway."""

    weight: float = 0.0
    rows: float = 0.0
    ns: float = 0.0
    rows_rows: float = 0.0
    rows_ns: float = 0.0
    extra: float = 0.0
    extra_rows: float = 0.0
    extra_extra: float = 0.0
    extra_ns: float = 0.0

    def add(self, rows: int, ns: float, extra: float = 0.0, weight: float = 1.0) -> None:
        memory = DECODE_MEMORY**weight
        self.weight = memory * self.weight + weight
        self.rows = memory * self.rows + weight * rows
        self.ns = memory * self.ns + weight * ns
        self.rows_rows = memory * self.rows_rows + weight * rows * rows
        self.rows_ns = memory * self.rows_ns + weight * rows * ns
        self.extra = memory * self.extra + weight * extra
        self.extra_rows = memory * self.extra_rows + weight * extra * rows
        self.extra_extra = memory * self.extra_extra + weight * extra * extra
        self.extra_ns = memory * self.extra_ns + weight * extra * ns

    def at(self, rows: int, extra: float = 0.0) -> float:
        """The line's value; where the points say nothing of a slope, their mean."""
        if not self.weight:
            return 0.0
        per_extra = self.per_extra if self.extra else 0.0
        mean_rows = self.rows / self.weight
        mean_ns = (self.ns - per_extra * self.extra) / self.weight
        at_ns = mean_ns + per_extra * extra
        if self.has_slope:
            spread = self._spread
            rows_ns = (self.rows_ns - per_extra * self.extra_rows) / self.weight
            slope = max((rows_ns - mean_rows * mean_ns) / spread, 0.0)
            at_ns += slope * (rows - mean_rows)
        return max(at_ns, 0.0)

    @property
    def per_extra(self) -> float:
        """What a unit of it adds; 0 where that cannot be separated from what a row adds."""
        weight = self.weight
        if not (weight and self.extra_extra):
            return 0.0
        rows, extra, ns = self.rows / weight, self.extra / weight, self.ns / weight
        own = self.extra_extra / weight - extra * extra
        own_ns = self.extra_ns / weight - extra * ns
        if (spread := self._spread) >= SPREAD_MIN:
            shared = self.extra_rows / weight - extra * rows
            own -= shared * shared / spread
            own_ns -= shared / spread * (self.rows_ns / weight - rows * ns)
        if own < OWN_SHARE_MIN * self.extra_extra / weight:
            return 0.0
        return max(own_ns / own, 0.0)

    @property
    def has_slope(self) -> bool:
        """Whether batches differed enough to tell what a row adds."""
        return self.weight > 0 and self._spread >= SPREAD_MIN

    @property
    def mean_rows(self) -> int:
        """Of the points."""
        return round(self.rows / self.weight) if self.weight else 0

    @property
    def _spread(self) -> float:
        mean = self.rows / self.weight
        return self.rows_rows / self.weight - mean * mean


@dataclass(slots=True)
class StepCosts:
    """Durations of steps to come, ns.

    Attributes:
        error: recent prefill steps took this share more or less than was predicted.
        models: models of steps with adapters.
    """

    error: float = 0.0
    models: StepModels = field(default_factory=StepModels)
    _decode: Line = field(default_factory=Line)
    _tokens: float = 0.0
    _tokens_ns: float = 0.0
    _num_mixed: int = 0  # steps since the last one of decodes alone

    @property
    def is_known(self) -> bool:
        """Whether enough steps ran to predict others."""
        return self.knows(PREFILL_TOKENS_MIN)

    def knows(self, num_tokens: float) -> bool:
        """Whether enough steps ran to predict one with so many prompt tokens: of short prompts, as
        after cached histories, fewer tokens are remembered than others are predicted from."""
        num_needed = min(num_tokens, PREFILL_TOKENS_MIN)
        return self._decode.weight >= DECODES_MIN and self._tokens >= num_needed

    @property
    def mean_rows(self) -> int:
        """Of the decode steps that were seen: of such a step the figures say what it takes."""
        return self._decode.mean_rows

    @property
    def figures_ns(self) -> tuple[float, float, float]:
        """What a prompt token more takes, a step without rows, a decode more. The last two fit
        together, whatever batches there were."""
        num_rows = self._decode.mean_rows
        at_ns = self._decode.at(num_rows)
        row_ns = self._decode.at(num_rows + 1) - at_ns
        if not self._decode.has_slope:
            row_ns = at_ns * ROW_SHARE / (1 + ROW_SHARE * num_rows)
        return self._token_ns, max(at_ns - num_rows * row_ns, 0.0), row_ns

    def on_step(
        self, num_tokens: int, num_decodes: int, duration_ns: int, lora: LoraLoad = NO_LORA
    ) -> None:
        """A step of `num_decodes` decodes and `num_tokens` prompt tokens ran, on these adapters."""
        if duration_ns <= 0:
            return
        if not num_tokens:
            self._decode.add(num_decodes, duration_ns, lora.num_bytes)
            self.models.add(num_decodes, lora, duration_ns)
            self._num_mixed = 0
            return
        if self.is_known:
            predicted_ns = self.step_ns(num_tokens, num_decodes, lora.num_bytes)
            error = abs(duration_ns / max(predicted_ns, 1) - 1)
            self.error += ERROR_WEIGHT * (min(error, 1.0) - self.error)
            self._learn_decodes(num_tokens, num_decodes, duration_ns, lora.num_bytes)
        beyond_ns = max(duration_ns - self._decode.at(num_decodes, lora.num_bytes), 0.0)
        self._tokens = PREFILL_MEMORY * self._tokens + num_tokens
        self._tokens_ns = PREFILL_MEMORY * self._tokens_ns + beyond_ns

    @property
    def _token_ns(self) -> float:
        """What a prompt token more takes."""
        return self._tokens_ns / self._tokens if self._tokens else 0.0

    def _learn_decodes(
        self, num_tokens: int, num_decodes: int, duration_ns: int, num_lora_bytes: int
    ) -> None:
        """From a step with prompt tokens: the less, the more of it they took, and nothing as long
        as steps of decodes alone tell it better."""
        tokens_ns = self._token_ns * num_tokens
        share = 1 - tokens_ns / duration_ns
        self._num_mixed += 1
        weight = share * min((self._num_mixed - 1) / MIXED_STEPS, 1.0)
        if num_decodes and weight > 0:
            self._decode.add(num_decodes, duration_ns - tokens_ns, num_lora_bytes, weight)

    def step_ns(self, num_tokens: int, num_decodes: int, num_lora_bytes: int = 0) -> int:
        """One step."""
        return int(self._decode.at(num_decodes, num_lora_bytes) + self._token_ns * num_tokens)

    def prefill_ns(self, num_tokens: int, num_decodes: int, budget: int) -> int:
        """All the steps that `num_tokens` prompt tokens take, in chunks of `budget`, while
        `num_decodes` turns decode; with a margin for how wrong such predictions were lately."""
        num_steps = -(-num_tokens // budget)
        decode_ns = self.step_ns(0, num_decodes)
        exact_ns = self.step_ns(num_tokens, num_decodes) + (num_steps - 1) * decode_ns
        return int(exact_ns * (1 + ERRORS_IN_MARGIN * self.error))
