"""Shared by the shells of this service's cores: the loop from events to effects, and the probe of a
silent worker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Never, TypeVar

from services.scheduler.leadership import Leadership
from shared.bus import Bus
from shared.errors import PeerUnavailable
from shared.ids import WorkerId
from shared.runtime.events import EventQueue
from shared.runtime.metrics import counter
from shared.wire.messages import Empty
from shared.wire.subjects import WORKER_PING

log = logging.getLogger(__name__)

E = TypeVar("E")

EVENTS_PER_TURN_OF_LOOP = 64
SILENT_S = 2.0
RETURN_S = 1.0  # in which peers reconnect to a server that has restarted

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
    """Feed the core its events and perform its effects, while this process leads. `gather` merges
    the effects of one event that one message can hold.

    The protocol makes up for an effect that cannot be sent: reports repeat, frontends submit again,
    and missing turns are noticed.
    """
    num_handled = 0
    while True:
        effects = await events.next_effects()
        await leadership.may_act()
        for effect in gather(effects):
            try:
                await perform(effect)
            except (PeerUnavailable, ValueError) as error:
                # ValueError: a peer's id that no subject can contain.
                UNSENT.inc()
                log.warning("effect not sent", extra={"error": str(error)})
        num_handled += 1
        if num_handled % EVENTS_PER_TURN_OF_LOOP == 0:
            # A full queue must not block reading the socket or renewing the lease.
            await asyncio.sleep(0)


async def probe(
    bus: Bus,
    worker_id: WorkerId,
    events: EventQueue[E],
    on_gone: Callable[[WorkerId, int], list[E]],
) -> None:
    """Probe a worker, and call the core's `on_gone` if it has no subscription, or does not answer
    for longer than a busy machine pauses. If the bus itself was disconnected recently, a missing
    answer proves nothing.
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
