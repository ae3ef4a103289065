"""What every process of a world stands on, and all that it knows of the world."""

from dataclasses import dataclass, field
from random import Random

from loadtest.sim.arena import Contents
from loadtest.sim.services.model import Model
from loadtest.sim.timeline import Timeline
from loadtest.sim.wires import Wires
from services.scheduler.core import POLICIES, Limits
from shared.eviction import EvictionName

TWIN_SHARE = 0.4
USUAL_MS, SOON_MS = 500, 150  # between reports; where turns are to move before they end
EXPIRIES_S = (0, 0, 1, 2, 8)  # 0: as every tier has it, which is long
ROUNDED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SimDeployment:
    """Attributes:
    random: decides what people and processes do; `fault_random` how faults show; `agent_random`
        which agents there are, and what they call.
    fault_kinds: that are on in this world (see `faults.KINDS`).
    model: served by all workers.
    is_crowded: many busy sessions on one small worker over a slow disk.
    eviction: policy of all pools and arenas.
    is_scattered: turns go to any worker, wherever their history is.
    disk_bytes_max: of each kvstore.
    has_peers: hosts give each other history.
    placement: policy of all schedulers, where turns are not scattered.
    expiries: draws how long turns want their KV kept; None: nobody says.
    num_shards: schedulers among which turns are divided.
    forms: draws which workers round KV that leaves their pools; None: nobody does.
    num_tracker_shards: among which the tracker is divided.
    contents: of all pages.
    twins: draws whose turns are asked for twice at once; None: nobody's.
    """

    timeline: Timeline
    random: Random
    fault_random: Random
    agent_random: Random
    fault_kinds: frozenset[str]
    wires: Wires
    model: Model
    is_crowded: bool
    eviction: EvictionName
    is_scattered: bool
    disk_bytes_max: int
    has_peers: bool
    placement: str
    expiries: Random | None
    num_shards: int = 1
    num_tracker_shards: int = 1
    forms: Random | None = None
    twins: Random | None = None
    contents: Contents = field(default_factory=Contents)

    def draw_model(self) -> Model:
        """As a worker has it."""
        is_rounded = self.forms is not None and self.forms.random() < ROUNDED_SHARE
        return self.model.rounded() if is_rounded else self.model

    def draw_expiry_s(self) -> int:
        """What a turn says; 0: nothing."""
        return 0 if self.expiries is None else self.expiries.choice(EXPIRIES_S)

    def has_twin(self) -> bool:
        """Whether a turn is asked for at two places at once."""
        return self.twins is not None and self.twins.random() < TWIN_SHARE

    @property
    def report_interval_ms(self) -> int:
        """Between the reports of a worker."""
        return SOON_MS if self.is_scattered else USUAL_MS

    @property
    def hears_hints(self) -> bool:
        """Whether places are kept for announced turns."""
        return self.is_scattered or POLICIES[self.placement](Limits()).hears_hints
