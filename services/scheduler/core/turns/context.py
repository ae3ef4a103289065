"""What the parts of the turn core share."""

from dataclasses import dataclass

from services.scheduler.core.base.effects import Effect
from services.scheduler.core.base.timers import Timers
from services.scheduler.core.fleet.fleet import Fleet
from services.scheduler.core.fleet.fleet_limits import Limits
from services.scheduler.core.turns.placer import Placer
from shared.wire.shards import Share


@dataclass(frozen=True, slots=True)
class TurnContext:
    """Attributes:
    out: effects of the event that is being handled; parts append to it.
    share: the turns that belong to this scheduler; those of its peers count as load only.
    """

    fleet: Fleet
    placer: Placer
    timers: Timers
    limits: Limits
    out: list[Effect]
    share: Share
