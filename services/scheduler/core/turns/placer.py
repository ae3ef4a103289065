"""Where a session's turn goes: the policy, told where the session was last."""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from services.scheduler.core.effects import PlacementReason
from services.scheduler.core.turns.fleet import Fleet
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.placement import Demand, PlacementPolicy
from services.scheduler.core.turns.records import SessionKey, Worker
from shared.ids import ModelId, WorkerId
from shared.messages import AdapterRef


@dataclass(frozen=True, slots=True)
class _LastTurn:
    worker_id: WorkerId
    model_id: ModelId
    adapter: AdapterRef | None
    num_tokens: int
    at_ns: int


class Placer:
    """Applies the policy to the workers of a model, and remembers recent sessions' workers."""

    def __init__(self, fleet: Fleet, policy: PlacementPolicy, limits: Limits) -> None:
        self._fleet = fleet
        self._policy = policy
        self._limits = limits
        self._last_turns: OrderedDict[SessionKey, _LastTurn] = OrderedDict()

    def choose(
        self,
        model_id: ModelId,
        key: SessionKey | None,
        now_ns: int,
        demand: Demand,
        avoid: Worker | None = None,
    ) -> tuple[Worker, PlacementReason] | None:
        """A worker for a turn of `model_id`; `avoid` only if it is the only one; None if none."""
        untried = [worker for worker in self._fleet.serving(model_id) if worker.trial is None]
        workers = _without(untried, avoid)
        if not workers:
            return None
        home = self._home(key, model_id, now_ns)
        return self._policy.choose(workers, home if home in workers else None, demand)

    def choose_empty(
        self, model_id: ModelId, demand: Demand, avoid: Worker | None = None
    ) -> Worker | None:
        """A worker that a suspect can have for itself: one without turns, while no more than half
        of the workers are kept from others like that; `avoid` only if it is the only one.
        """
        workers = self._fleet.serving(model_id)
        num_trials = sum(worker.trial is not None for worker in workers)
        empty = [worker for worker in _without(workers, avoid) if not worker.turns]
        if not empty or num_trials >= max(1, len(workers) // 2):
            return None
        return self._policy.choose(empty, None, demand)[0]

    def choose_to_empty(self, model_id: ModelId, avoid: Worker | None = None) -> Worker | None:
        """A worker whose turns can make room for a suspect: the one with the fewest, unless another
        suspect is tried already. Turns that only its reports tell of cannot be moved. `avoid` only
        if it is the only one.
        """
        workers = self._fleet.serving(model_id)
        if any(worker.trial is not None for worker in workers):
            return None
        movable = [
            worker
            for worker in _without(workers, avoid)
            if all(turn.submit is not None for turn in worker.turns.values())
        ]
        return min(movable, key=lambda w: (len(w.turns), w.worker_id), default=None)

    def remember(
        self,
        key: SessionKey,
        worker_id: WorkerId,
        model_id: ModelId,
        adapter: AdapterRef | None,
        num_tokens: int,
        now_ns: int,
    ) -> None:
        """The session's latest turn, with a prompt of so many tokens, runs there."""
        self._last_turns[key] = _LastTurn(worker_id, model_id, adapter, num_tokens, now_ns)
        self._last_turns.move_to_end(key)
        if len(self._last_turns) > self._limits.sessions_max:
            self._last_turns.popitem(last=False)

    def model_of(self, key: SessionKey) -> tuple[ModelId | None, AdapterRef | None]:
        """The model and adapter of the session's last turn; of an unknown session, the only model
        there is.
        """
        last = self._last_turns.get(key)
        if last is None:
            return self._fleet.only_model(), None
        return last.model_id, last.adapter

    def num_tokens_of(self, key: SessionKey) -> int:
        """Of the prompt of the session's last turn; 0: not known."""
        last = self._last_turns.get(key)
        return 0 if last is None else last.num_tokens

    def _home(self, key: SessionKey | None, model_id: ModelId, now_ns: int) -> Worker | None:
        last = self._last_turns.get(key) if key is not None else None
        if last is None or now_ns - last.at_ns > self._limits.affinity_ns:
            return None
        worker = self._fleet.get(last.worker_id)
        return worker if worker is not None and model_id in worker.models else None


def _without(workers: Collection[Worker], avoid: Worker | None) -> Collection[Worker]:
    """These workers but one, unless there is no other."""
    return [worker for worker in workers if worker is not avoid] or workers
