"""What a model's turns say, on its way to frontends and schedulers."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass

from services.worker import metrics
from services.worker.core.effects import Emit, EmitTokens, Ended, Prefetched, TurnAccount
from services.worker.core.splitting import Unsent
from shared.bus import Bus
from shared.errors import SymphonyError
from shared.ids import FrontendId
from shared.runtime.dying import die
from shared.runtime.tasks import Tasks
from shared.wire.messages import TurnEnd, TurnsEnded, TurnStart
from shared.wire.subjects import STEP_OUTPUT, TURNS_ENDED

log = logging.getLogger(__name__)

ENDS_TOGETHER_S = 0.005
ENDS_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineListeners:
    """Who hears of what, beside frontends and schedulers.

    Attributes:
        on_stuck: called with the reason when the engine cannot go on.
        on_progress: called when the worker should report before its next report is due.
        on_ended: called with every attempt that is over.
        on_prefetched: called with the outcome for announced turns that are traced.
    """

    on_stuck: Callable[[str], None] = die
    on_progress: Callable[[], None] = lambda: None
    on_ended: Callable[[Ended], None] = lambda ended: None
    on_prefetched: Callable[[Prefetched], None] = lambda prefetched: None


class Outbox:
    """Gathers tokens and ends until `flush`, and sends one message a frontend."""

    def __init__(self, bus: Bus, listeners: EngineListeners) -> None:
        self._listeners = listeners
        self._bus = bus
        self._unsent: dict[FrontendId, Unsent] = defaultdict(Unsent)
        self._ends: list[Ended] = []
        self._is_sending_ends = False
        self._tasks = Tasks("sending the ends of turns failed")

    def add(self, effect: EmitTokens | Emit | Ended) -> None:
        """Tokens or the end of turns."""
        match effect:
            case EmitTokens():
                self._unsent[effect.frontend_id].add_tokens(effect.tokens)
            case Emit():
                self._unsent[effect.frontend_id].add_delta(effect.delta)
            case Ended():
                self._ends.append(effect)
                self._listeners.on_ended(effect)

    async def flush(self) -> None:
        """Send the new tokens of turns, one message a frontend. The ends of turns follow soon."""
        if self._unsent:
            unsent, self._unsent = self._unsent, defaultdict(Unsent)
            for frontend_id, of_frontend in unsent.items():
                for output in of_frontend.messages(self._bus.payload_bytes_max):
                    await self._bus.publish(STEP_OUTPUT, output, frontend_id)
        if self._ends and not self._is_sending_ends:
            self._is_sending_ends = True
            self._tasks.spawn(self._send_ends())

    async def drain(self) -> None:
        """Wait until the ends of turns are sent."""
        await self._tasks.wait(ENDS_PATIENCE_S)

    async def _send_ends(self) -> None:
        """Send the ends of some steps to the scheduler together: it needs none of them at once."""
        await asyncio.sleep(ENDS_TOGETHER_S)
        self._is_sending_ends = False
        ends, self._ends = self._ends, []
        await self._bus.publish(TURNS_ENDED, TurnsEnded(turns=[ended.end for ended in ends]))
        for ended in ends:
            _log_end(ended.end, ended.account)


def note_rejected(start: TurnStart, error: SymphonyError) -> None:
    """A turn's prompt cannot be used: count and log it."""
    metrics.REJECTED.labels("prompt", error.code).inc()
    log.warning("prompt rejected", extra={"turn_id": start.turn_id, "error": error.message})


def _log_end(end: TurnEnd, account: TurnAccount | None) -> None:
    fields = {} if account is None else asdict(account)
    named = {"turn_id": end.turn_id, "attempt": end.attempt, "reason": end.reason}
    log.info("turn ended", extra={**named, **fields})
