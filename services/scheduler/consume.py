"""What the shells of this service's cores share: the loop from events to effects, and the question
whether a silent worker is there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Never, TypeVar

from services.scheduler.leadership import Leadership
from shared.bus import Bus
from shared.errors import PeerUnavailable
from shared.events import EventQueue
from shared.ids import WorkerId
from shared.messages import Empty
from shared.metrics import counter
from shared.subjects import WORKER_PING

log = logging.getLogger(__name__)

E = TypeVar("E")

EVENTS_PER_TURN_OF_LOOP = 64
SILENT_S = 2.0
RETURN_S = 1.0  # in which others have found a server that is back, too

UNSENT = counter("scheduler_effects_unsent_total", "Effects that the bus did not take")
PROBES = counter(
    "scheduler_probes_total", "Silent workers asked whether they are there", ["answer"]
)


async def consume(
    events: EventQueue[E],
    leadership: Leadership,
    perform: Callable[[E], Awaitable[None]],
    gather: Callable[[list[E]], list[E]] = list,
) -> Never:
    """Tell the core its events and perform what it wants, while this process leads. `gather` puts
    together what one event led to and one message can hold.

    An effect that cannot be sent is made good by the protocol: reports repeat, frontends submit
    again, what was lost is found missing.
    """
    num_handled = 0
    while True:
        effects = await events.next_effects()
        await leadership.may_act()
        for effect in gather(effects):
            try:
                await perform(effect)
            except (PeerUnavailable, ValueError) as error:
                # ValueError: a peer's id that can stand in no subject.
                UNSENT.inc()
                log.warning("effect not sent", extra={"error": str(error)})
        num_handled += 1
        if num_handled % EVENTS_PER_TURN_OF_LOOP == 0:
            # A full queue must not keep the socket from being read, nor the lease from renewal.
            await asyncio.sleep(0)


async def probe(
    bus: Bus,
    worker_id: WorkerId,
    events: EventQueue[E],
    on_gone: Callable[[WorkerId, int], list[E]],
) -> None:
    """Ask whether a worker is there; tell the core by `on_gone` if nobody listens, or if it says
    nothing for longer than a busy machine stands still. Where the bus itself was away lately, that
    nobody answers tells nothing.
    """
    was_steady_s = bus.steady_for_s
    try:
        is_there = await bus.has_responder(WORKER_PING, Empty(), worker_id, timeout_s=SILENT_S)
    except ValueError:  # no worker can have such an id
        is_there = False
    PROBES.labels("yes" if is_there else "no").inc()
    if not is_there and RETURN_S <= was_steady_s <= bus.steady_for_s:
        log.warning("worker does not answer", extra={"worker_id": worker_id})
        events.put(partial(on_gone, worker_id))
