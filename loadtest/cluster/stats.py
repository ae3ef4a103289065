"""What is noted while a simulated cluster runs, and what it comes to."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from loadtest.cluster.result import ClusterResult, PrefetchCounts, Spread
from loadtest.sim.timeline import MS, SECOND
from services.worker.core.effects import TurnAccount
from shared.ids import TurnId
from shared.wire.messages import KvPlace
from shared.wire.urgency import is_urgent


@dataclass(slots=True)
class TurnRecord:
    """A turn as who asked it sees it; times of the workload, ns.

    Attributes:
        num_history: tokens of its prompt whose KV was computed before.
        num_made: tokens that were made, no less than `num_output`; `num_first` of them came
            together at first.
        num_computed: tokens of its prompt that were computed, by all of its attempts.
        cached_in: tokens of its prompt by where their KV was when it came, at its last attempt.
    """

    script: str
    priority: int
    arrived_at_ns: int
    num_prompt: int
    num_history: int
    num_output: int
    num_made: int
    num_first: int
    first_at_ns: int = 0
    ended_at_ns: int = 0
    num_computed: int = 0
    is_failed: bool = False
    cached_in: Mapping[KvPlace, int] = field(default_factory=dict)


@dataclass(slots=True)
class Stats:
    """Attributes:
    grain: tokens that are one to workers.
    turns: all that were asked, in order.
    outcomes: of advisories, by name.
    num_turns_of: that each script has.
    num_spurious: advisories for nothing.
    loads: turns on each GPU, sample by sample.
    warm_ns: turns that came before are not counted.
    """

    grain: int = 1
    turns: dict[TurnId, TurnRecord] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    num_turns_of: dict[str, int] = field(default_factory=dict)
    num_spurious: int = 0
    loads: list[list[int]] = field(default_factory=list)
    warm_ns: int = 0

    def on_account(self, turn_id: TurnId, account: TurnAccount) -> None:
        """An attempt of a turn is over on a worker."""
        self.turns[turn_id].num_computed += account.num_computed * self.grain

    def on_cached(self, turn_id: TurnId, cached_in: Mapping[KvPlace, int]) -> None:
        """Where a worker found the KV of a turn that begins there."""
        cached = {place: num_tokens * self.grain for place, num_tokens in cached_in.items()}
        self.turns[turn_id].cached_in = cached

    def on_warm(self) -> None:
        """What was until now does not count."""
        self.outcomes.clear()
        self.loads.clear()
        self.num_spurious = 0

    def result(self, duration_ns: int, loaded_tokens: Counter[str], took_s: float) -> ClusterResult:
        """Times of all that came when it was warm, and ended, after `duration_ns` from then too;
        rates of what ended within it."""
        warm_ns, lasts_ns = self.warm_ns, self.warm_ns + duration_ns
        counted = [each for each in self.turns.values() if each.arrived_at_ns >= warm_ns]
        records = [each for each in counted if each.ended_at_ns]
        done = [each for each in records if not each.is_failed]
        in_time = [
            each
            for each in self.turns.values()
            if warm_ns < each.ended_at_ns <= lasts_ns and not each.is_failed
        ]
        urgent = [each for each in done if is_urgent(each.priority)]
        other = [each for each in done if not is_urgent(each.priority)]
        return ClusterResult(
            turns=len(done),
            failed=len(records) - len(done),
            unfinished=len(counted) - len(records),
            ttft_ms=_ttft(done),
            tpot_ms=_tpot(done),
            normalized_ms=spread(
                (each.ended_at_ns - each.arrived_at_ns) / MS / each.num_output for each in done
            ),
            by_priority={
                name: {"ttft_ms": _ttft(some), "tpot_ms": _tpot(some)}
                for name, some in (("urgent", urgent), ("other", other))
                if some
            },
            requests_per_s=len(in_time) / (duration_ns / SECOND),
            tokens_per_s=sum(each.num_output for each in in_time) / (duration_ns / SECOND),
            load_max_over_median=_imbalance(self.loads),
            load_max_minus_min=_distance(self.loads),
            cached_tokens=_cached(done),
            recomputed_tokens=sum(map(_recomputed, done)),
            prompt_tokens=sum(each.num_prompt for each in done),
            prefetch=PrefetchCounts(
                used=self.outcomes["used"],
                wasted=self.outcomes["expired"] + self.outcomes["overtaken"],
                late=self.outcomes["late"],
                missed=self.outcomes["missed"],
            ),
            loaded_tokens=dict(loaded_tokens),
            history_tokens=sum(each.num_history for each in done),
            return_ttft_ms=_ttft([each for each in done if each.num_history]),
            workflow_s=self._workflows(done),
            workflows=len(self.num_turns_of),
            spurious=self.num_spurious,
            took_s=took_s,
        )

    def _workflows(self, turns: Sequence[TurnRecord]) -> list[float]:
        """Of scripts that came to their end."""
        by_script: dict[str, list[TurnRecord]] = {}
        for each in turns:
            by_script.setdefault(each.script, []).append(each)
        return [
            (max(each.ended_at_ns for each in own) - min(each.arrived_at_ns for each in own))
            / SECOND
            for name, own in by_script.items()
            if len(own) == self.num_turns_of[name]
        ]


def _recomputed(turn: TurnRecord) -> int:
    """Tokens of its history that were computed again."""
    num_new = turn.num_prompt - turn.num_history
    return min(max(turn.num_computed - num_new, 0), turn.num_history)


def spread(values: Iterable[float]) -> Spread:
    """Mean and percentiles; zeros of nothing.

    >>> spread([1.0, 2.0, 3.0]).p50
    2.0
    """
    array = np.fromiter(values, float)
    if not len(array):
        return Spread(0.0, 0.0, 0.0, 0.0)
    p50, p95, p99 = np.percentile(array, [50, 95, 99]).tolist()
    return Spread(float(array.mean()), p50, p95, p99)


def _ttft(turns: Sequence[TurnRecord]) -> Spread:
    return spread((each.first_at_ns - each.arrived_at_ns) / MS for each in turns)


def _tpot(turns: Sequence[TurnRecord]) -> Spread:
    """Of turns with more than one token."""
    return spread(
        (each.ended_at_ns - each.first_at_ns) / MS / (each.num_made - each.num_first)
        for each in turns
        if each.num_made > each.num_first
    )


def _cached(turns: Sequence[TurnRecord]) -> dict[str, int]:
    """Tokens by place, in the order of the places."""
    found: Counter[str] = Counter()
    for each in turns:
        found.update(each.cached_in)
    return {place: found[place] for place in get_args(KvPlace)}


def _imbalance(loads: Sequence[Sequence[int]]) -> float:
    """The fullest over the median one, in the mean over samples in which that has any."""
    ratios = [max(sample) / median for sample in loads if (median := statistics.median(sample)) > 0]
    return statistics.fmean(ratios) if ratios else 0.0


def _distance(loads: Sequence[Sequence[int]]) -> float:
    """From the emptiest to the fullest, in the mean over samples."""
    return statistics.fmean(max(sample) - min(sample) for sample in loads) if loads else 0.0
