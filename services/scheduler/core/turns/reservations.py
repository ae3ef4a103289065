"""Places kept for sessions whose turn is expected (SYMPHONY, section 3.3: the scheduler routes a
turn to the node chosen when its advisory came).
"""

from dataclasses import replace
from heapq import heapify, heappop, heappush

from services.scheduler.core.batching.job import NEVER_NS
from services.scheduler.core.effects import DropPrefetch, Effect, SendPrefetch, TellPlace
from services.scheduler.core.turns.limits import Limits
from services.scheduler.core.turns.placement import Demand
from services.scheduler.core.turns.placer import Placer, last_of
from services.scheduler.core.turns.records import Reservation, SessionKey, Worker
from shared.blocks import BLOCK_TOKENS
from shared.hints import HINT_HOLD_NS
from shared.ids import ModelId
from shared.locations import known_places, worth_keeping
from shared.messages import (
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
from shared.urgency import is_urgent

STALE_LOOKS_MIN = 1024


class Reservations:
    """At most one live reservation a session; each counts as one request of its worker, from some
    time before its turn is expected."""

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
        """See whose turn is near now, or did not come."""
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
                self._see_how_far(held, now_ns)

    def expect(self, message: ExpectSession, now_ns: int) -> SessionPlacement:
        """Keep a place, or keep the one there is for longer; asks the worker to prefetch."""
        if not self._placer.hears_hints:
            return SessionPlacement()
        key = (message.tenant, message.session_id)
        model_id, adapter = message.model_id, message.adapter
        if model_id is None:
            model_id, adapter = self._placer.model_of(key)
        if model_id is None:
            return SessionPlacement()
        if message.prefix is None:
            told = known_places(worth_keeping(message.kv_at))
            kv_at = self._placer.known_at(key, model_id, adapter, told, now_ns)
        else:
            kv_at = self._placer.prefix_at(message.tenant, message.prefix, model_id, adapter)
        expires_at_ns = now_ns + message.expires_in_ns
        held = self._held.get(key)
        if held is not None and held.model_id == model_id:
            held.worker.num_urgent -= held.is_urgent
            held.priority = max(held.priority, message.priority)
            held.worker.num_urgent += held.is_urgent
            held.expires_at_ns = max(held.expires_at_ns, expires_at_ns)
            held.adapter, held.kv_at = adapter, kv_at or held.kv_at
            held.prefix, held.trace = message.prefix, message.trace
            held.worker.arrivals.remove(held.arrives_at_ns)
            held.arrives_at_ns, held.told_at_ns = _arrival(message, now_ns), now_ns
            held.worker.arrivals.add(held.arrives_at_ns)
            self._see_how_far(held, now_ns)
        else:
            if held is not None:
                self._release(held)
                self._drop_prefetch(held)
            demand = Demand(
                model_id=model_id,
                adapter=adapter,
                kv_at=kv_at,
                name=message.session_id,
                is_urgent=is_urgent(message.priority),
                ahead_ns=message.arrives_in_ns or None,
                num_history_tokens=_num_prefix_tokens(message.prefix),
            )
            place_of = _history_of(key, message.prefix)
            chosen = self._placer.choose(model_id, place_of, now_ns, demand)
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
                now_ns,
                kv_at=kv_at,
                prefix=message.prefix,
                trace=message.trace,
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

    def take(self, key: SessionKey, model_id: ModelId, at: Worker | None = None) -> Worker | None:
        """The session's turn is here: use up its reservation.

        Args:
            at: where it runs already; None: wherever its place is kept, if that can have it.

        Returns:
            None: none was kept for this model, or none that can be had.
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
        """Under what name a place may be kept for a turn: its session's, or, if there is none and
        nothing of the session is known, that of its agent in its workflow.
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
        """What a turn needs whose place is kept under this name, which may stand for an agent."""
        held = self._held.get(key) if key is not None else None
        if held is None or held.prefix is None:
            return demand
        num_tokens = min(_num_prefix_tokens(held.prefix), demand.num_prompt_tokens)
        return replace(demand, num_history_tokens=num_tokens, kv_at=held.kv_at)

    def gave_up(self, key: SessionKey, model_id: ModelId, worker: Worker) -> None:
        """The place was taken, but its turn goes elsewhere."""
        self._tell_dropped(key, model_id, worker)

    def move_off(self, worker: Worker, now_ns: int) -> None:
        """The worker can take no turns of these any more: keep places elsewhere, if there are."""
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
        """The worker forgot everything, but can still take what is reserved on it."""
        for held in worker.reservations.values():
            self._prefetch(held, now_ns)

    def _hold(self, held: Reservation, now_ns: int) -> None:
        self._held[held.key] = held
        held.worker.reservations[held.key] = held
        held.worker.arrivals.add(held.arrives_at_ns)
        held.worker.num_urgent += held.is_urgent
        self._see_how_far(held, now_ns)

    def _release(self, held: Reservation) -> None:
        del self._held[held.key]
        del held.worker.reservations[held.key]
        held.worker.arrivals.remove(held.arrives_at_ns)
        held.worker.num_urgent -= held.is_urgent
        held.worker.num_far -= held.is_far
        held.is_far = False

    def _see_how_far(self, held: Reservation, now_ns: int) -> None:
        """Count it as load, or not yet; and see that it is looked at when that changes, or ends."""
        expected_at_ns = held.arrives_at_ns or held.told_at_ns
        near_at_ns = expected_at_ns - self._limits.near_ns
        over_at_ns = expected_at_ns + HINT_HOLD_NS
        is_far = not near_at_ns <= now_ns < over_at_ns
        held.worker.num_far += is_far - held.is_far
        held.worker.num_urgent -= held.is_urgent
        held.is_far = is_far
        held.worker.num_urgent += held.is_urgent
        changes_at_ns = [at_ns for at_ns in (near_at_ns, over_at_ns) if at_ns > now_ns]
        look_at_ns = min([*changes_at_ns, held.expires_at_ns])
        if look_at_ns < held.looked_at_ns:  # one that is told again needs no second look
            held.looked_at_ns = look_at_ns
            self._num_looks += 1
            heappush(self._looks, (look_at_ns, self._num_looks, held))
            self._forget_stale_looks()

    def _forget_stale_looks(self) -> None:
        """Keep those that count, once they are less than about half: a turn that is announced and
        taken back again and again leaves one each time."""
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
        if held.prefix is not None:  # of a session that no frontend has heard of
            return
        placed = SessionPlaced(
            session_id=session_id,
            tenant=tenant,
            model_id=held.model_id,
            worker_id=held.worker.worker_id,
            expires_in_ns=max(held.expires_at_ns - now_ns, 0),
            kv_at=dict(held.kv_at),
        )
        self._out.append(TellPlace(placed))

    def _drop_prefetch(self, held: Reservation) -> None:
        """What its worker brings up, or has brought up, is of no use there any more."""
        self._tell_dropped(held.key, held.model_id, held.worker)

    def _tell_dropped(self, key: SessionKey, model_id: ModelId, worker: Worker) -> None:
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
    """Whose last turn left what the turn will go on from."""
    return key if prefix is None else last_of(key[0], prefix.agent)


def _num_prefix_tokens(prefix: AgentPrefix | None) -> int:
    return 0 if prefix is None else prefix.num_blocks * BLOCK_TOKENS


def _arrival(message: ExpectSession, now_ns: int) -> int:
    """When its turn is expected; 0: at any time."""
    return now_ns + message.arrives_in_ns if message.arrives_in_ns else 0
