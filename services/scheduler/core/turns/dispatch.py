"""Sends a turn to the worker where it is to run beside others."""

from collections.abc import Collection

from services.scheduler.core.base.effects import PlacementReason
from services.scheduler.core.fleet.records import SessionKey, Turn, Worker
from services.scheduler.core.placement import Demand
from services.scheduler.core.turns.context import TurnContext
from services.scheduler.core.turns.promises import Promises
from services.scheduler.core.turns.reservations import Reservations
from services.scheduler.core.turns.turn_table import SENT_ATTEMPT, TurnTable
from shared.ids import SessionId
from shared.wire.messages import TurnRef, TurnSubmit


class Dispatch:
    """Takes a turn's reservation if it has one, and asks the policy if not."""

    def __init__(
        self,
        context: TurnContext,
        table: TurnTable,
        reservations: Reservations,
        promises: Promises,
    ) -> None:
        self._fleet = context.fleet
        self._placer = context.placer
        self._table = table
        self._reservations = reservations
        self._promises = promises

    def place(
        self,
        turn: Turn,
        submit: TurnSubmit,
        now_ns: int,
        avoid: Worker | None = None,
        among: Collection[Worker] | None = None,
    ) -> bool:
        """Start a turn on a worker; False: there is none, or none with room. Args: as
        `Placer.choose`.
        """
        is_first = turn.num_placements == 0
        name = self._reservations.key_of(submit) if is_first else None
        demand = self._reservations.with_prefix(name, self._promises.demand_of(turn, submit))
        sent_to = self._sent_to(submit) if is_first else None
        reserved = self._reservations.peek(name, submit.model_id) if name else None
        chosen: tuple[Worker, PlacementReason] | None
        if reserved is not None and name is not None:
            chosen = self._reserved_or_better(reserved, name, demand, sent_to, now_ns)
        else:
            key = None if submit.session_id is None else (submit.tenant, submit.session_id)
            chosen = self._placer.choose(
                submit.model_id, key, now_ns, demand, avoid=avoid, among=among
            )
            if chosen is None and sent_to is not None and _can_take(sent_to, submit):
                chosen = sent_to, "affinity"  # it runs there, or waits there
            if chosen is not None and name is not None:
                self._reservations.take(name, submit.model_id)
        if chosen is None:
            return False
        worker, reason = chosen
        if sent_to is not None and sent_to is not worker:
            self._table.cancel_attempt(sent_to, TurnRef(turn_id=turn.turn_id, attempt=SENT_ATTEMPT))
        self._table.start(
            turn,
            submit,
            worker,
            reason if is_first else "replaced",
            now_ns,
            demand.promise(worker),
            expected_as=_name_of_agent(name, submit) if reserved is worker else None,
        )
        return True

    def _reserved_or_better(
        self,
        reserved: Worker,
        name: SessionKey,
        demand: Demand,
        sent_to: Worker | None,
        now_ns: int,
    ) -> tuple[Worker, PlacementReason] | None:
        """The reserved worker, or a better one if that is overloaded by now; None: it is full, and
        all others are. The reservation is taken then, and only then.
        """
        is_sent = sent_to is reserved
        if not is_sent and not self._placer.has_room(reserved, demand):
            return None
        self._reservations.take(name, demand.model_id)
        chosen = self._placer.keep_or_better(reserved, name, now_ns, demand, is_sent=is_sent)
        if chosen[0] is not reserved:
            self._reservations.abandon(name, demand.model_id, reserved)
        return chosen

    def _sent_to(self, submit: TurnSubmit) -> Worker | None:
        """The worker to which its frontend sent the turn."""
        return None if submit.sent_to is None else self._fleet.get(submit.sent_to)


def _can_take(worker: Worker, submit: TurnSubmit) -> bool:
    return worker.is_open and submit.model_id in worker.models


def _name_of_agent(name: SessionKey | None, submit: TurnSubmit) -> SessionId | None:
    """The name of a reservation that is not its session's."""
    is_agent = name is not None and name != (submit.tenant, submit.session_id)
    return name[1] if name is not None and is_agent else None
