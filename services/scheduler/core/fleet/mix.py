"""Which adapters and targets the turns of one model on a worker have: what its steps take depends
on all of them.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from shared.wire.messages import AdapterRef, PlacedTurn, TurnRef


class Adapter(NamedTuple):
    """As far as placement knows it."""

    adapter_hash: str
    lora_rank: int
    image_bytes: int

    @classmethod
    def of(cls, ref: AdapterRef) -> "Adapter":
        """That of a turn."""
        return cls(ref.adapter_hash, max(ref.lora_rank, 0), max(ref.image_bytes, 0))


def adapter_named(ref: TurnRef | PlacedTurn) -> Adapter | None:
    """That of a turn which another process names; None: the base model."""
    return Adapter(ref.adapter_hash, max(ref.lora_rank, 0), 0) if ref.adapter_hash else None


class LoraUnits(NamedTuple):
    """What each model of a step's time multiplies (`StepModelFit`).

    Attributes:
        padded: rows on an adapter times the largest rank of them.
        unpadded: the sum of the rows' ranks.
        distinct: bytes of different adapters.
    """

    padded: int = 0
    unpadded: int = 0
    distinct: int = 0


Key = TypeVar("Key")


@dataclass(slots=True)
class Mix:
    """Attributes:
    adapters: how many turns have each.
    targets_ms: how many turns have each target for the time between tokens.
    """

    adapters: Counter[Adapter] = field(default_factory=Counter)
    targets_ms: Counter[float] = field(default_factory=Counter)

    def add(self, adapter: Adapter | None, target_ms: float | None) -> None:
        """A turn with these is there."""
        if adapter is not None:
            self.adapters[adapter] += 1
        if target_ms is not None:
            self.targets_ms[target_ms] += 1

    def remove(self, adapter: Adapter | None, target_ms: float | None) -> None:
        """A turn that was added is there no more."""
        if adapter is not None:
            _take_one(self.adapters, adapter)
        if target_ms is not None:
            _take_one(self.targets_ms, target_ms)

    def num_broken(self, before_ms: float, after_ms: float) -> int:
        """How many targets are met by steps of `before_ms` and missed by those of `after_ms`."""
        targets_ms = self.targets_ms
        return sum(num for each, num in targets_ms.items() if before_ms <= each < after_ms)

    def has(self, adapter_hash: str) -> bool:
        """Whether a turn on this adapter is there."""
        return any(adapter.adapter_hash == adapter_hash for adapter in self.adapters)

    def units(self, extra: Adapter | None = None) -> LoraUnits:
        """Of a step with all turns there, and with one more on this adapter.

        >>> mix = Mix()
        >>> mix.add(Adapter("a", 8, 100), None)
        >>> mix.units(Adapter("b", 64, 800))
        LoraUnits(padded=128, unpadded=72, distinct=900)
        """
        adapters = self.adapters
        num_rows, rank_max, rank_sum, num_bytes = 0, 0, 0, 0
        for adapter, num in adapters.items():
            num_rows += num
            rank_max = max(rank_max, adapter.lora_rank)
            rank_sum += num * adapter.lora_rank
            num_bytes += adapter.image_bytes
        if extra is not None:
            num_rows += 1
            rank_max = max(rank_max, extra.lora_rank)
            rank_sum += extra.lora_rank
            num_bytes += 0 if extra in adapters else extra.image_bytes
        return LoraUnits(num_rows * rank_max, rank_sum, num_bytes)


NO_MIX = Mix()


def _take_one(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
