"""Turns that wait for a worker, in the order in which they are to get one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from services.scheduler.core.fleet.records import Turn
from shared.ids import ModelId, TurnId

STALE_MIN = 64

Rank = tuple[int, int]  # by priority, the highest first, then by deadline, ns
_Queued = tuple[Rank, int, Turn]  # with a number of its own, so that turns are never compared


@dataclass(slots=True)
class _OfModel:
    """Attributes:
    alone: those that need a worker alone.
    queued: the others, with their ranks.
    heap: of what is or was in `queued`.
    """

    alone: dict[TurnId, Turn] = field(default_factory=dict)
    queued: dict[TurnId, _Queued] = field(default_factory=dict)
    heap: list[_Queued] = field(default_factory=list)


class WaitingTurns:
    """By model. A queue costs O(log n) a turn: some entries of its heap are of turns that left."""

    def __init__(self) -> None:
        self._by_model: dict[ModelId, _OfModel] = {}
        self._num_added = 0

    def __len__(self) -> int:
        return sum(len(each.alone) + len(each.queued) for each in self._by_model.values())

    def __contains__(self, turn: Turn) -> bool:
        of_model = self._by_model.get(turn.model_id)
        return of_model is not None and (
            turn.turn_id in of_model.alone or turn.turn_id in of_model.queued
        )

    @property
    def models(self) -> list[ModelId]:
        """Models of which any turn waits."""
        return list(self._by_model)

    def is_awaited(self, models: Iterable[ModelId]) -> bool:
        """Whether a turn of any of these waits."""
        return any(model_id in self._by_model for model_id in models)

    def add(self, turn: Turn, rank: Rank | None) -> None:
        """A turn that does not wait yet.

        Args:
            rank: its place in the queue, before later ones of the same; None: it needs a worker
                alone.
        """
        of_model = self._by_model.setdefault(turn.model_id, _OfModel())
        if rank is None:
            of_model.alone[turn.turn_id] = turn
            return
        self._num_added += 1
        entry = of_model.queued[turn.turn_id] = rank, self._num_added, turn
        heap = of_model.heap
        if len(heap) >= 2 * len(of_model.queued) + STALE_MIN:
            heap[:] = of_model.queued.values()
            heapify(heap)
        else:
            heappush(heap, entry)

    def remove(self, turn: Turn) -> None:
        """It has a worker, or is over; nothing if it does not wait."""
        of_model = self._by_model.get(turn.model_id)
        if of_model is None:
            return
        of_model.queued.pop(turn.turn_id, None)
        of_model.alone.pop(turn.turn_id, None)
        if not of_model.queued and not of_model.alone:
            del self._by_model[turn.model_id]

    def alone(self, model_id: ModelId) -> list[Turn]:
        """Those that need a worker alone, the first first."""
        of_model = self._by_model.get(model_id)
        return [] if of_model is None else list(of_model.alone.values())

    def rank_of(self, turn: Turn) -> Rank:
        """Of one that is in a queue."""
        return self._by_model[turn.model_id].queued[turn.turn_id][0]

    def num_queued(self, model_id: ModelId) -> int:
        """How many of a model are in its queue."""
        of_model = self._by_model.get(model_id)
        return 0 if of_model is None else len(of_model.queued)

    def first(self, model_id: ModelId) -> Turn | None:
        """The one whose turn it is in the queue."""
        of_model = self._by_model.get(model_id)
        if of_model is None:
            return None
        heap = of_model.heap
        while heap:
            entry = heap[0]
            turn = entry[2]
            if of_model.queued.get(turn.turn_id) is entry:
                return turn
            heappop(heap)
        return None
