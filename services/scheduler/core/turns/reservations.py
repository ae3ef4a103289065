"""Reservations for sessions whose turn is announced (SYMPHONY, section 3.3: the scheduler routes a
turn to the node that was chosen when its advisory arrived).
"""

from collections.abc import Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush

from services.scheduler.core.base.effects import DropPrefetch, Effect, NotifyFrontends, SendPrefetch
from services.scheduler.core.batching.job import NEVER_NS
from services.scheduler.core.fleet.fleet_limits import Limits
from services.scheduler.core.fleet.records import Reservation, SessionKey, Worker
from services.scheduler.core.placement import Demand
from services.scheduler.core.turns.placer import Placer, last_of
from shared.blocks import BLOCK_TOKENS
from shared.hints import HINT_HOLD_NS
from shared.ids import HostId, ModelId
from shared.locations import known_places, worth_keeping
from shared.wire.messages import (
    AdapterRef,
    AdvisoryKey,
    AgentPrefix,
    ExpectSession,
    Prefetch,
    PrefetchDrop,
    SessionPlaced,
    SessionPlacement,
    TurnSubmit,
    prefix_session,
)
from shared.wire.urgency import is_urgent

STALE_LOOKS_MIN = 1024


class Reservations:
    """At most one live reservation per session. It counts as one turn of its worker from
    `Limits.near_ns` before its expected turn on.
    """

    def __init__(self, placer: Placer, limits: Limits, out: list[Effect]) -> None:
        self._placer = placer
        self._limits = limits
        self._out = out
        self._held: dict[SessionKey, Reservation] = {}
        self._looks: list[tuple[int, int, Reservation]] = []  # a heap; some are stale
        self._num_looks = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def next_look_at_ns(self) -> int:
        """When to `look` next."""
        return self._looks[0][0] if self._looks else NEVER_NS

    def look(self, now_ns: int) -> None:
        """Update which reservations count as load, and release expired ones."""
        while self._looks and self._looks[0][0] <= now_ns:
            at_ns, _, held = heappop(self._looks)
            if held.looked_at_ns != at_ns:
                continue
            held.looked_at_ns = NEVER_NS
            if self._held.get(held.key) is not held:
                continue
            if held.expires_at_ns <= now_ns:
                self._release(held)
            else:
                self._update_distance(held, now_ns)

    def expect(self, message: ExpectSession, now_ns: int) -> SessionPlacement:
        """Reserve a place, or renew the session's reservation; makes the worker prefetch."""
        if not self._placer.policy.hears_hints:
            return SessionPlacement()
        key = (message.tenant, message.session_id)
        model_id, adapter = message.model_id, message.adapter
        if model_id is None:
            model_id, adapter = self._placer.model_of(key)
        if model_id is None:
            return SessionPlacement()
        if message.prefix is None:
            advised = known_places(worth_keeping(message.kv_at))
            kv_at = self._placer.known_at(key, model_id, adapter, advised, now_ns)
        else:
            kv_at = self._placer.prefix_at(message.tenant, message.prefix, model_id, adapter)
        held = self._held.get(key)
        if held is not None and held.model_id == model_id:
            held.adapter, held.kv_at = adapter, kv_at or held.kv_at
            self._renew(held, message, now_ns)
        else:
            if held is not None:
                self._release(held)
                self._drop_prefetch(held)
            held = self._reserve(message, model_id, adapter, kv_at, now_ns)
        if held is None:
            return SessionPlacement()
        self._prefetch(held, now_ns)
        return SessionPlacement(worker_id=held.worker.worker_id)

    def _renew(self, held: Reservation, message: ExpectSession, now_ns: int) -> None:
        worker = held.worker
        worker.num_urgent -= held.is_urgent
        held.priority = max(held.priority, message.priority)
        worker.num_urgent += held.is_urgent
        held.expires_at_ns = max(held.expires_at_ns, now_ns + message.expires_in_ns)
        held.prefix, held.trace = message.prefix, message.trace
        worker.expected.remove(held.arrives_at_ns)
        held.arrives_at_ns, held.advised_at_ns = _arrival(message, now_ns), now_ns
        worker.expected.add(held.arrives_at_ns)
        self._update_distance(held, now_ns)

    def _reserve(
        self,
        message: ExpectSession,
        model_id: ModelId,
        adapter: AdapterRef | None,
        kv_at: Mapping[HostId, int],
        now_ns: int,
    ) -> Reservation | None:
        """A new reservation; None if no worker serves the model or there are too many."""
        key = (message.tenant, message.session_id)
        demand = Demand(
            model_id=model_id,
            adapter=adapter,
            kv_at=kv_at,
            name=message.session_id,
            is_urgent=is_urgent(message.priority),
            ahead_ns=message.arrives_in_ns or None,
            num_history_tokens=_num_prefix_tokens(message.prefix),
        )
        chosen = self._placer.choose(model_id, _history_of(key, message.prefix), now_ns, demand)
        if chosen is None or len(self._held) >= self._limits.reservations_max:
            return None
        held = Reservation(
            key,
            model_id,
            chosen[0],
            message.priority,
            now_ns + message.expires_in_ns,
            adapter,
            _arrival(message, now_ns),
            now_ns,
            kv_at=kv_at,
            prefix=message.prefix,
            trace=message.trace,
        )
        self._hold(held, now_ns)
        return held

    def drop(self, message: AdvisoryKey) -> None:
        """Release the reservation of a withdrawn turn."""
        held = self._held.get((message.tenant, message.session_id))
        if held is not None:
            self._release(held)
            self._drop_prefetch(held)

    def peek(self, key: SessionKey, model_id: ModelId) -> Worker | None:
        """The reserved worker of a turn that has arrived, if it can be used."""
        held = self._held.get(key)
        is_of_use = held is not None and model_id == held.model_id and held.worker.is_open
        return held.worker if held is not None and is_of_use else None

    def take(self, key: SessionKey, model_id: ModelId, at: Worker | None = None) -> Worker | None:
        """Consume the reservation of a turn that has arrived.

        Args:
            at: the worker that it runs on already; None: any that is open.

        Returns:
            The reserved worker; None if there is none for this model, or it cannot be used.
        """
        held = self._held.get(key)
        if held is None:
            return None
        self._release(held)
        is_of_use = model_id == held.model_id and (
            held.worker.is_open if at is None else held.worker is at
        )
        if is_of_use:
            return held.worker
        self._drop_prefetch(held)
        return None

    def key_of(self, submit: TurnSubmit) -> SessionKey | None:
        """The name of the turn's reservation: its session, or, where that has none and is unknown,
        its agent in its workflow.
        """
        if submit.session_id is None:
            return None
        key = submit.tenant, submit.session_id
        if submit.agent is None or key in self._held or known_places(submit.kv_at):
            return key
        by_agent = submit.tenant, prefix_session(submit.agent)
        held = self._held.get(by_agent)
        if held is None or self._placer.num_tokens_of(key):
            return key
        adapter_hash = "" if submit.adapter is None else submit.adapter.adapter_hash
        is_its = (held.model_id, held.adapter_hash) == (submit.model_id, adapter_hash)
        return by_agent if is_its else key

    def with_prefix(self, key: SessionKey | None, demand: Demand) -> Demand:
        """The demand of a turn with this reservation, whose history may be its agent's prefix."""
        held = self._held.get(key) if key is not None else None
        if held is None or held.prefix is None:
            return demand
        num_tokens = min(_num_prefix_tokens(held.prefix), demand.num_prompt_tokens)
        return replace(demand, num_history_tokens=num_tokens, kv_at=held.kv_at)

    def abandon(self, key: SessionKey, model_id: ModelId, worker: Worker) -> None:
        """The reservation was taken, but its turn is placed on another worker."""
        self._send_drop(key, model_id, worker)

    def move_off(self, worker: Worker, now_ns: int) -> None:
        """Move reservations of models that the worker does not serve any more to other workers."""
        for held in list(worker.reservations.values()):
            if held.model_id in worker.models:
                continue
            self._release(held)
            if worker.alive:
                self._drop_prefetch(held)
            demand = _demand_of(held, now_ns)
            place_of = _history_of(held.key, held.prefix)
            chosen = self._placer.choose(held.model_id, place_of, now_ns, demand, avoid=worker)
            if chosen is not None:
                held.worker = chosen[0]
                self._hold(held, now_ns)
                self._prefetch(held, now_ns)

    def prefetch_again(self, worker: Worker, now_ns: int) -> None:
        """Repeat the prefetches of a restarted worker."""
        for held in worker.reservations.values():
            self._prefetch(held, now_ns)

    def _hold(self, held: Reservation, now_ns: int) -> None:
        self._held[held.key] = held
        held.worker.reservations[held.key] = held
        held.worker.expected.add(held.arrives_at_ns)
        held.worker.num_urgent += held.is_urgent
        self._update_distance(held, now_ns)

    def _release(self, held: Reservation) -> None:
        del self._held[held.key]
        del held.worker.reservations[held.key]
        held.worker.expected.remove(held.arrives_at_ns)
        held.worker.num_urgent -= held.is_urgent
        held.worker.num_far -= held.is_far
        held.is_far = False

    def _update_distance(self, held: Reservation, now_ns: int) -> None:
        """Update whether it counts as load, and schedule the next look for when that changes."""
        expected_at_ns = held.arrives_at_ns or held.advised_at_ns
        near_at_ns = expected_at_ns - self._limits.near_ns
        over_at_ns = expected_at_ns + HINT_HOLD_NS
        is_far = not near_at_ns <= now_ns < over_at_ns
        held.worker.num_far += is_far - held.is_far
        held.worker.num_urgent -= held.is_urgent
        held.is_far = is_far
        held.worker.num_urgent += held.is_urgent
        changes_at_ns = [at_ns for at_ns in (near_at_ns, over_at_ns) if at_ns > now_ns]
        look_at_ns = min([*changes_at_ns, held.expires_at_ns])
        if look_at_ns < held.looked_at_ns:  # an unchanged one has its look scheduled
            held.looked_at_ns = look_at_ns
            self._num_looks += 1
            heappush(self._looks, (look_at_ns, self._num_looks, held))
            self._forget_stale_looks()

    def _forget_stale_looks(self) -> None:
        """Remove outdated looks once they are more than about half: each withdrawn announcement
        leaves one.
        """
        if len(self._looks) <= 2 * len(self._held) + STALE_LOOKS_MIN:
            return
        self._looks = [
            look
            for look in self._looks
            if self._held.get(look[2].key) is look[2] and look[2].looked_at_ns == look[0]
        ]
        heapify(self._looks)

    def _prefetch(self, held: Reservation, now_ns: int) -> None:
        tenant, session_id = held.key
        prefetch = Prefetch(
            session_id=session_id,
            tenant=tenant,
            model_id=held.model_id,
            priority=held.priority,
            expires_in_ns=max(held.expires_at_ns - now_ns, 0),
            adapter=held.adapter,
            arrives_in_ns=max(held.arrives_at_ns - now_ns, 0),
            num_tokens=self._placer.num_tokens_of(held.key),
            kv_at=dict(held.kv_at),
            keys=held.prefix.keys if held.prefix is not None else "",
            trace=held.trace,
        )
        self._out.append(SendPrefetch(held.worker.worker_id, prefetch))
        if held.prefix is not None:  # no frontend knows this session yet
            return
        placed = SessionPlaced(
            session_id=session_id,
            tenant=tenant,
            model_id=held.model_id,
            worker_id=held.worker.worker_id,
            expires_in_ns=max(held.expires_at_ns - now_ns, 0),
            kv_at=dict(held.kv_at),
        )
        self._out.append(NotifyFrontends(placed))

    def _drop_prefetch(self, held: Reservation) -> None:
        """Release what its worker has prefetched, or is prefetching."""
        self._send_drop(held.key, held.model_id, held.worker)

    def _send_drop(self, key: SessionKey, model_id: ModelId, worker: Worker) -> None:
        tenant, session_id = key
        drop = PrefetchDrop(session_id=session_id, tenant=tenant, model_id=model_id)
        self._out.append(DropPrefetch(worker.worker_id, drop))


def _demand_of(held: Reservation, now_ns: int) -> Demand:
    return Demand(
        model_id=held.model_id,
        adapter=held.adapter,
        kv_at=held.kv_at,
        name=held.key[1],
        num_history_tokens=_num_prefix_tokens(held.prefix),
        is_urgent=is_urgent(held.priority),
        ahead_ns=max(held.arrives_at_ns - now_ns, 0) if held.arrives_at_ns else None,
    )


def _history_of(key: SessionKey, prefix: AgentPrefix | None) -> SessionKey:
    """The key of the last turn whose KV the expected turn continues from."""
    return key if prefix is None else last_of(key[0], prefix.agent)


def _num_prefix_tokens(prefix: AgentPrefix | None) -> int:
    return 0 if prefix is None else prefix.num_blocks * BLOCK_TOKENS


def _arrival(message: ExpectSession, now_ns: int) -> int:
    """When its turn is expected; 0: at an unknown time."""
    return now_ns + message.arrives_in_ns if message.arrives_in_ns else 0
