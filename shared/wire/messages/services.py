"""What services report: status, metrics, what a scheduler placed, and which one leads."""

from dataclasses import dataclass, field

from shared.ids import HostId, ModelId, TenantId, TurnId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty:
    """A request or reply without content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStage:
    """What a process that is not ready yet is doing.

    Attributes:
        name: a key of `shared.runtime.stages.STAGES`.
        model: that it does it for; empty: for none.
        seconds: since it began.
        num_done, num_total: bytes of `load`, sizes of `measure`, graphs of `record`; 0: not known.
    """

    name: str
    model: str = ""
    seconds: float = 0.0
    num_done: int = 0
    num_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HintRate:
    """How often a tenant's advisories were right lately.

    Attributes:
        hits: share of them whose turns came.
        num_hints: so many it is of; older ones weigh less.
    """

    tenant: TenantId
    hits: float
    num_hints: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """A sender whose advisories are refused.

    Attributes:
        place: where they come from; empty: all of the tenant's.
        num_refused: since they began to be refused.
    """

    tenant: TenantId
    place: str
    retry_after_s: float  # until advisories are taken again
    num_refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HintStatus:
    """What a service knows of advisories: the tracker the first two, a frontend mostly the last.

    Attributes:
        num_live: whose turns are expected.
    """

    num_live: int = 0
    rates: list[HintRate] = field(default_factory=list)  # of each tenant
    # senders whose advisories are refused now
    throttled: list[Throttled] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """A worker's KV pool of one model.

    Attributes:
        num_blocks: that it has room for.
        num_layers: pages of a block in the tiers below; 0: none go there.
        page_bytes: of such a page.
    """

    model: str  # the model's name
    num_blocks: int
    num_layers: int = 0
    page_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One process's answer to the status call that all get."""

    service: str
    instance: str
    pid: int
    state: str  # starting, ready, draining
    process: str = ""  # as in `ServiceMetrics`
    models: list[str] = field(default_factory=list)  # a frontend: that can be asked now
    hints: HintStatus | None = None  # a tracker's or frontend's
    pools: list[KvPool] = field(default_factory=list)  # a worker's
    stage: StartStage | None = None  # of its start


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsWanted:
    """What do you measure?

    Attributes:
        as_openmetrics: in that format, which has exemplars, and not in Prometheus's own.
    """

    as_openmetrics: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMetrics:
    """What a process measures.

    Attributes:
        process: a unique name: a worker's id, a kvstore's host, or its service and instance.
        packed: in the format that was asked for, by `shared.runtime.exposition.pack_text`.
    """

    service: str
    process: str
    packed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker as the scheduler sees it.

    Attributes:
        models: those of turns, then the one-shot ones.
    """

    worker_id: WorkerId
    host_id: HostId
    state: str  # as it reported, or `dead`: no report for too long
    models: list[str] = field(default_factory=list)
    num_turns: int = 0  # turns that are there, running or waiting
    num_reservations: int = 0
    num_pages: int = 0
    num_pages_free: int = 0
    num_pages_clean: int = 0
    num_pages_dirty: int = 0
    report_age_ms: float = 0.0  # since its last report


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWindow:
    """The batch that waits of a one-shot model, and when it may start.

    Attributes:
        model: and its input size, if it has several.
        num_waiting: jobs, of which the batch takes what fits.
        opens_in_ms: until one job more would not fit any more; below 0: since then.
        closes_in_ms: until it would be too late.
        is_offered: it waits for a worker.
    """

    model: str
    num_waiting: int
    opens_in_ms: float
    closes_in_ms: float
    is_offered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """The scheduler's view of the deployment."""

    workers: list[WorkerStatus] = field(default_factory=list)  # all that it knows
    process: str = ""  # as in `ServiceMetrics`
    num_turns_placed: int = 0  # turns that run on workers
    num_turns_waiting: int = 0  # turns that wait for one
    num_reservations: int = 0
    # of each one-shot model with waiting jobs
    windows: list[JobWindow] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """The leader; the one value under a lease's key in the store.

    Attributes:
        instance: the holder, unlike any other process's name; empty when it was given back.
        fence: grows with every new term; kept when the lease is given back.
        beat: renewals in this term; says nothing but that the holder lives.
    """

    instance: str
    fence: int
    beat: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWritten:
    """Holder to spares: the store took this lease under this revision."""

    lease: LeaderLease  # what was stored
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """Holder to a spare that asks whether it is there."""

    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTurn:
    """A turn that another scheduler has just sent to a worker.

    Attributes:
        num_tokens: of its prompt, that are likely to be computed.
        num_blocks: that it will take of the model's pool.
        model_id: None: not known.
    """

    turn_id: TurnId
    worker_id: WorkerId
    model_id: ModelId | None = None
    num_blocks: int = 0
    num_tokens: int = 0
    is_urgent: bool = False  # its priority is above the usual
    adapter_hash: str = ""
    lora_rank: int = 0
    slo_tpot_ms: float | None = None  # its target for the time between tokens; null: none


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsPlaced:
    """Scheduler to the others. Nothing depends on it: workers' reports say so within a second.

    Attributes:
        shard: the sender's.
        kept: workers that it keeps for one turn alone, or wants to; sent repeatedly.
    """

    shard: int
    turns: list[PlacedTurn] = field(default_factory=list)
    kept: list[WorkerId] = field(default_factory=list)
