"""Chooses a turn's worker: applies the policy, given the worker of the session's last turn."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeAlias

from services.scheduler.core.base.effects import PlacementReason
from services.scheduler.core.fleet.fleet import Fleet
from services.scheduler.core.fleet.fleet_limits import Limits
from services.scheduler.core.fleet.records import SessionKey, Worker
from services.scheduler.core.fleet.speeds import DEFAULT_SPEEDS
from services.scheduler.core.placement import Demand, PlacementPolicy
from shared.eviction import RECENT_NS
from shared.ids import HostId, ModelId, TenantId, WorkerId
from shared.locations import ANYWHERE, BLOCKS_MAX, worth_keeping
from shared.wire.messages import AdapterRef, AgentPrefix, AgentRef, TurnSubmit, prefix_session
from shared.wire.shards import Share

WORKERS_OF_HOST_MAX = 8  # considered because a session's history is on their host

_Purpose: TypeAlias = Literal["choose", "compare"]


@dataclass(frozen=True, slots=True)
class _LastTurn:
    worker_id: WorkerId
    model_id: ModelId
    adapter: AdapterRef | None
    num_tokens: int
    at_ns: int

    def fits(self, model_id: ModelId, adapter: AdapterRef | None) -> bool:
        """Whether its KV can be used by this model with this adapter."""
        return model_id == self.model_id and _hash_of(adapter) == _hash_of(self.adapter)


class Placer:
    """Applies the policy to the workers of a model, and remembers recent sessions' workers."""

    def __init__(self, fleet: Fleet, policy: PlacementPolicy, limits: Limits, share: Share) -> None:
        self._fleet = fleet
        self._share = share
        self._policy = policy
        self._limits = limits
        self._last_turns: OrderedDict[SessionKey, _LastTurn] = OrderedDict()
        self._num_asked: Counter[_Purpose] = Counter()

    @property
    def policy(self) -> PlacementPolicy:
        """What decides."""
        return self._policy

    def choose(
        self,
        model_id: ModelId,
        key: SessionKey | None,
        now_ns: int,
        demand: Demand,
        *,
        avoid: Worker | None = None,
        among: Collection[Worker] | None = None,
    ) -> tuple[Worker, PlacementReason] | None:
        """A worker for a turn of `model_id`; None: there is none, or none has room for one that is
        here.

        Args:
            avoid: only if it is the only one, with room or not.
            among: the only ones to choose from; None: all.
        """
        last = self._last_turns.get(key) if key is not None else None
        demand = _with_history(demand, last, now_ns)
        home = self._home(last, model_id, demand, now_ns)
        if among is None:
            candidates = self._candidates(model_id, home, demand, "choose")
            workers = self._with_room(candidates, demand, avoid)
        else:
            open_ones = [each for each in among if each.is_open and model_id in each.models]
            workers = self._that_fit(_without(open_ones, avoid), demand)
        if not workers:
            return None
        return self._policy.choose(workers, home if home in workers else None, demand)

    def keep_or_better(
        self, kept: Worker, key: SessionKey, now_ns: int, demand: Demand, *, is_sent: bool
    ) -> tuple[Worker, PlacementReason]:
        """The reserved worker, or one that is so much better that the arrived turn should run
        there. Some worker `has_room`.

        Args:
            is_sent: the turn is on the reserved worker already.
        """
        demand = _with_history(demand, self._last_turns.get(key), now_ns)
        workers = self._with_room(
            self._candidates(demand.model_id, kept, demand, "compare"), demand
        )
        if not workers:
            return kept, "reserved"
        if not (is_sent or self._that_fit([kept], demand)):
            return self._policy.choose(workers, None, demand)[0], "moved"
        better = self._policy.better_than(kept, workers, demand, is_sent=is_sent)
        return (kept, "reserved") if better is None else (better, "moved")

    def has_room(self, kept: Worker, demand: Demand) -> bool:
        """Whether the reserved worker has room for its turn, which is here, or any other one."""
        if self._that_fit([kept], demand):
            return True
        every = [each for each in self._fleet.serving(demand.model_id) if each.is_open]
        return bool(self._that_fit(every, demand))

    def _with_room(
        self, workers: list[Worker], demand: Demand, avoid: Worker | None = None
    ) -> Collection[Worker]:
        """Those with room for a turn that is here; of all workers where none of these has."""
        fitting = self._that_fit(_without(workers, avoid), demand)
        if fitting or not workers or self._policy.num_looked_at is None:
            return fitting
        every = [each for each in self._fleet.serving(demand.model_id) if each.is_open]
        return self._that_fit(_without(every, avoid), demand)

    def _that_fit(self, workers: Collection[Worker], demand: Demand) -> Collection[Worker]:
        """What room there will be for a turn that is still to come is not known. What fits nowhere,
        however little else is there, is for any worker to refuse at once.
        """
        if demand.ahead_ns != 0:
            return workers
        fitting = [worker for worker in workers if self._policy.has_room(worker, demand)]
        serving = self._fleet.serving(demand.model_id)
        if fitting or any(demand.can_fit(worker) for worker in serving):
            return fitting
        return workers

    def _candidates(
        self, model_id: ModelId, home: Worker | None, demand: Demand, purpose: _Purpose
    ) -> list[Worker]:
        """Open workers of the model. Of very many, a slice that rotates by purpose, and those near
        the session's history.
        """
        serving, num = self._fleet.serving(model_id), self._policy.num_looked_at
        if num is not None and len(serving) > num:
            self._num_asked[purpose] += 1  # counted apart: one turn may need both
            some = self._fleet.slice_of(model_id, self._num_asked[purpose] * num, num)
            near = [
                worker
                for host_id in demand.kv_at
                for worker in islice(self._fleet.on_host(model_id, host_id), WORKERS_OF_HOST_MAX)
            ]
            own = [home] if home is not None and model_id in home.models else []
            found = {w.worker_id: w for w in (*some, *near, *own) if w.is_open}
            if found:
                return list(found.values())
        return [worker for worker in serving if worker.is_open]

    def choose_empty(
        self, model_id: ModelId, demand: Demand, avoid: Worker | None = None
    ) -> Worker | None:
        """A worker without turns for a quarantined turn, while at most half of the workers are
        isolated; `avoid` only if it is the only one.
        """
        workers = self._fleet.serving(model_id)
        num_isolating = sum(
            not worker.is_open and not self._is_claimed(worker) for worker in workers
        )
        candidates = self._own(_without(workers, avoid))
        empty = [
            worker
            for worker in candidates
            if not worker.num_turns and (worker.is_open or self._is_claimed(worker))
        ]
        if not empty or num_isolating >= max(1, len(workers) // 2):
            return None
        claimed = [worker for worker in empty if self._is_claimed(worker)]
        return self._policy.choose(claimed or empty, None, demand)[0]

    def choose_to_empty(self, model_id: ModelId, avoid: Worker | None = None) -> Worker | None:
        """A worker to empty for a quarantined turn: one that is claimed already, or the one with
        the fewest turns; None while another worker is isolated. Turns that are known from reports
        only cannot be moved. `avoid` only if it is the only one.
        """
        workers = self._fleet.serving(model_id)
        if any(not worker.is_open and not self._is_claimed(worker) for worker in workers):
            return None
        movable = [
            worker
            for worker in self._own(_without(workers, avoid))
            if all(turn.submit is not None for turn in worker.turns.values())
        ]
        return min(
            movable,
            key=lambda w: (w.isolation.claimed_by is None, w.num_turns, w.worker_id),
            default=None,
        )

    def _own(self, workers: Collection[Worker]) -> Collection[Worker]:
        """The workers on which this scheduler isolates turns, so that no two schedulers take the
        same one; all of them if its share is empty.
        """
        return [worker for worker in workers if self._share.has_worker(worker.worker_id)] or workers

    def _is_claimed(self, worker: Worker) -> bool:
        """Whether this scheduler has claimed it for a quarantined turn that is not there yet."""
        return worker.isolation.turn is None and worker.isolation.claimed_by == self._share.index

    def remember(
        self,
        key: SessionKey,
        worker_id: WorkerId,
        model_id: ModelId,
        adapter: AdapterRef | None,
        num_tokens: int,
        now_ns: int,
    ) -> None:
        """Remember the worker and prompt length of the session's latest turn."""
        self._last_turns[key] = _LastTurn(worker_id, model_id, adapter, num_tokens, now_ns)
        self._last_turns.move_to_end(key)
        if len(self._last_turns) > self._limits.sessions_max:
            self._last_turns.popitem(last=False)

    def model_of(self, key: SessionKey) -> tuple[ModelId | None, AdapterRef | None]:
        """The model and adapter of the session's last turn; for an unknown session, the only served
        model, if there is exactly one.
        """
        last = self._last_turns.get(key)
        if last is None:
            return self._fleet.only_model(), None
        return last.model_id, last.adapter

    def num_tokens_of(self, key: SessionKey) -> int:
        """Prompt tokens of the session's last turn; 0: unknown."""
        last = self._last_turns.get(key)
        return 0 if last is None else last.num_tokens

    def num_history_tokens_of(
        self, key: SessionKey, model_id: ModelId, adapter: AdapterRef | None
    ) -> int:
        """The same if this model with this adapter can use that turn's KV; else 0."""
        last = self._last_turns.get(key)
        return 0 if last is None or not last.fits(model_id, adapter) else last.num_tokens

    def prefix_at(
        self, tenant: TenantId, prefix: AgentPrefix, model_id: ModelId, adapter: AdapterRef | None
    ) -> dict[HostId, int]:
        """Blocks of an agent's common prompt prefix by host: where its last turn ran, if that was
        on this model with this adapter.
        """
        last = self._last_turns.get(last_of(tenant, prefix.agent))
        if last is None or not last.fits(model_id, adapter):
            return {}
        worker = self._fleet.get(last.worker_id)
        return {} if worker is None else worth_keeping({worker.report.host_id: prefix.num_blocks})

    def located(self, submit: TurnSubmit, now_ns: int) -> TurnSubmit:
        """The turn with its session's KV locations completed by `known_at`."""
        if submit.session_id is None:
            return submit
        key = submit.tenant, submit.session_id
        kv_at = self.known_at(key, submit.model_id, submit.adapter, submit.kv_at, now_ns)
        return submit if kv_at == submit.kv_at else replace(submit, kv_at=kv_at)

    def known_at(
        self,
        key: SessionKey,
        model_id: ModelId,
        adapter: AdapterRef | None,
        kv_at: Mapping[HostId, int],
        now_ns: int,
    ) -> dict[HostId, int]:
        """Blocks of a session's KV by host: the given locations, and the host of its last turn.

        The given locations are of disks and lag behind. A turn that follows soon finds more in the
        memory of the last turn's host. If the frontend could not look up the locations, that host
        is assumed to have all blocks.
        """
        known, last = dict(kv_at), self._last_turns.get(key)
        if last is None or not last.fits(model_id, adapter):
            return known
        worker = self._fleet.get(last.worker_id)
        if worker is None:
            return known
        host_id = worker.report.host_id
        if (num_blocks := known.pop(ANYWHERE, None)) is not None:
            return {**known, host_id: num_blocks}
        if worker.alive and now_ns - last.at_ns < RECENT_NS:
            block_tokens = worker.speeds.get(model_id, DEFAULT_SPEEDS).block_tokens
            num_blocks = min(last.num_tokens // block_tokens + 1, BLOCKS_MAX)
            # First in order: readers keep the first of too many locations.
            known = {host_id: 0, **known}
            known[host_id] = max(known[host_id], num_blocks)
        return known

    def _home(
        self, last: _LastTurn | None, model_id: ModelId, demand: Demand, now_ns: int
    ) -> Worker | None:
        if last is None:
            return None
        is_old = now_ns - last.at_ns > self._limits.affinity_ns
        if self._policy.leaves_home and (is_old or not last.fits(model_id, demand.adapter)):
            return None
        worker = self._fleet.get(last.worker_id)
        return worker if worker is not None and model_id in worker.models else None


def last_of(tenant: TenantId, agent: AgentRef) -> SessionKey:
    """The key under which an agent's last turn is remembered, independent of the workflow."""
    return tenant, prefix_session(replace(agent, workflow_id=""))


def _with_history(demand: Demand, last: _LastTurn | None, now_ns: int) -> Demand:
    if last is None or not last.fits(demand.model_id, demand.adapter):
        return replace(demand, now_ns=now_ns)
    return replace(
        demand,
        now_ns=now_ns,
        num_history_tokens=min(last.num_tokens, demand.num_history_tokens or last.num_tokens),
        idle_ns=max(now_ns - last.at_ns, 0),
    )


def _hash_of(adapter: AdapterRef | None) -> str:
    return "" if adapter is None else adapter.adapter_hash


def _without(workers: Collection[Worker], avoid: Worker | None) -> Collection[Worker]:
    """These workers without `avoid`, unless it is the only one."""
    return [worker for worker in workers if worker is not avoid] or workers
