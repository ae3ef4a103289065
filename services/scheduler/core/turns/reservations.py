"""Places kept for sessions whose turn is expected (SYMPHONY, section 3.3: the scheduler routes a
turn to the node chosen when its advisory came).
"""

from services.scheduler.core.batching.job import NEVER_NS
from services.scheduler.core.effects import DropPrefetch, Effect, SendPrefetch, TellPlace
from services.scheduler.core.timers import Timers
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.placement import Demand
from services.scheduler.core.turns.placer import Placer
from services.scheduler.core.turns.records import Reservation, SessionKey, Worker
from shared.ids import ModelId
from shared.messages import (
    AdvisoryKey,
    ExpectSession,
    Prefetch,
    PrefetchDrop,
    SessionPlaced,
    SessionPlacement,
)


class Reservations:
    """At most one live reservation a session; each counts as one request of its worker, from some
    time before its turn is expected."""

    def __init__(self, placer: Placer, timers: Timers, limits: Limits, out: list[Effect]) -> None:
        self._placer = placer
        self._timers = timers
        self._limits = limits
        self._out = out
        self._held: dict[SessionKey, Reservation] = {}

    def __len__(self) -> int:
        return len(self._held)

    def expect(self, message: ExpectSession, now_ns: int) -> SessionPlacement:
        """Keep a place, or keep the one there is for longer; asks the worker to prefetch."""
        key = (message.tenant, message.session_id)
        model_id, adapter = message.model_id, message.adapter
        if model_id is None:
            model_id, adapter = self._placer.model_of(key)
        if model_id is None:
            return SessionPlacement()
        expires_at_ns = now_ns + message.expires_in_ns
        held = self._held.get(key)
        if held is not None and held.model_id == model_id:
            held.priority = max(held.priority, message.priority)
            held.expires_at_ns = max(held.expires_at_ns, expires_at_ns)
            held.adapter = adapter
            held.arrives_at_ns = _arrival(message, now_ns)
            self._see_how_far(held, now_ns)
        else:
            if held is not None:
                self._release(held)
                self._drop_prefetch(held)
            chosen = self._placer.choose(model_id, key, now_ns, Demand(adapter=adapter))
            if chosen is None or len(self._held) >= self._limits.reservations_max:
                return SessionPlacement()
            held = Reservation(
                key,
                model_id,
                chosen[0],
                message.priority,
                expires_at_ns,
                adapter,
                _arrival(message, now_ns),
            )
            self._hold(held, now_ns)
        self._prefetch(held, now_ns)
        return SessionPlacement(worker_id=held.worker.worker_id)

    def drop(self, message: AdvisoryKey) -> None:
        """The turn is not coming after all."""
        held = self._held.get((message.tenant, message.session_id))
        if held is not None:
            self._release(held)
            self._drop_prefetch(held)

    def take(self, key: SessionKey, model_id: ModelId) -> Worker | None:
        """The session's turn is here: use up its reservation. None if there is none for this
        model."""
        held = self._held.get(key)
        if held is None:
            return None
        self._release(held)
        if model_id == held.model_id:
            return held.worker
        self._drop_prefetch(held)
        return None

    def move_off(self, worker: Worker, now_ns: int) -> None:
        """The worker can take no turns of these any more: keep places elsewhere, if there are."""
        for held in list(worker.reservations.values()):
            if held.model_id in worker.models:
                continue
            self._release(held)
            if worker.alive:
                self._drop_prefetch(held)
            demand = Demand(adapter=held.adapter)
            chosen = self._placer.choose(held.model_id, held.key, now_ns, demand, avoid=worker)
            if chosen is not None:
                held.worker = chosen[0]
                self._hold(held, now_ns)
                self._prefetch(held, now_ns)

    def prefetch_again(self, worker: Worker, now_ns: int) -> None:
        """The worker forgot everything, but can still take what is reserved on it."""
        for held in worker.reservations.values():
            self._prefetch(held, now_ns)

    def _hold(self, held: Reservation, now_ns: int) -> None:
        self._held[held.key] = held
        held.worker.reservations[held.key] = held
        self._see_how_far(held, now_ns)
        self._timers.at(held.expires_at_ns, lambda now_ns: self._on_expiry(held, now_ns))

    def _release(self, held: Reservation) -> None:
        del self._held[held.key]
        del held.worker.reservations[held.key]
        held.worker.num_far -= held.is_far
        held.is_far = False

    def _see_how_far(self, held: Reservation, now_ns: int) -> None:
        """Count it as load, or not yet."""
        near_at_ns = held.arrives_at_ns - self._limits.near_ns
        is_far = now_ns < near_at_ns
        held.worker.num_far += is_far - held.is_far
        held.is_far = is_far
        if is_far and near_at_ns < held.looked_at_ns:  # one that is told again sets no second timer
            held.looked_at_ns = near_at_ns
            self._timers.at(near_at_ns, lambda at_ns: self._look(held, at_ns))

    def _look(self, held: Reservation, now_ns: int) -> None:
        held.looked_at_ns = NEVER_NS
        if self._held.get(held.key) is held and held.is_far:
            self._see_how_far(held, now_ns)

    def _on_expiry(self, held: Reservation, now_ns: int) -> None:
        if self._held.get(held.key) is not held:
            return
        if held.expires_at_ns <= now_ns:
            self._release(held)
        else:
            self._timers.at(held.expires_at_ns, lambda at_ns: self._on_expiry(held, at_ns))

    def _prefetch(self, held: Reservation, now_ns: int) -> None:
        tenant, session_id = held.key
        prefetch = Prefetch(
            session_id=session_id,
            tenant=tenant,
            model_id=held.model_id,
            priority=held.priority,
            expires_in_ns=held.expires_at_ns - now_ns,
            adapter=held.adapter,
            arrives_in_ns=max(held.arrives_at_ns - now_ns, 0),
            num_tokens=self._placer.num_tokens_of(held.key),
        )
        self._out.append(SendPrefetch(held.worker.worker_id, prefetch))
        placed = SessionPlaced(
            session_id=session_id,
            tenant=tenant,
            model_id=held.model_id,
            worker_id=held.worker.worker_id,
            expires_in_ns=held.expires_at_ns - now_ns,
        )
        self._out.append(TellPlace(placed))

    def _drop_prefetch(self, held: Reservation) -> None:
        """What its worker brings up, or has brought up, is of no use there any more."""
        tenant, session_id = held.key
        drop = PrefetchDrop(session_id=session_id, tenant=tenant, model_id=held.model_id)
        self._out.append(DropPrefetch(held.worker.worker_id, drop))


def _arrival(message: ExpectSession, now_ns: int) -> int:
    """When its turn is expected; 0: at any time."""
    return now_ns + message.arrives_in_ns if message.arrives_in_ns else 0
