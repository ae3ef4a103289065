"""A job on the wire: one input for a one-shot model (embedding, classification, reranking).

The frontend owns the input; the scheduler sees ids and deadlines only and forms batches; the worker
pulls the inputs of a batch from the frontends after the dispatch (deferred batch scheduling,
section 4.1). Deadlines travel as durations, so clocks of hosts need not agree.
"""

from dataclasses import dataclass, field
from typing import Literal

from shared.ids import BatchId, FrontendId, JobId, ModelId, WorkerId

Task = Literal["embed", "classify", "rerank"]
Modality = Literal["text", "image"]

SLO_MS_MAX = 3_600_000.0  # an hour: longer targets are not taken
SOLE_LEADERSHIP = "all"  # of a scheduler that is not divided


@dataclass(frozen=True, slots=True, kw_only=True)
class OneshotVariant:
    """A model at one input size: what the scheduler batches, since equal inputs take equal time.

    Attributes:
        variant: tokens that inputs are padded to; 0 when all inputs are of one size (images).
        batch_ns: time of a batch of 1, 2, 3, ... inputs as profiled at load, ns; its length is the
            largest batch that the worker runs.
    """

    variant: int
    batch_ns: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneshotCard:
    """A one-shot model as one worker serves it."""

    model_id: ModelId
    task: Task  # what it makes of them
    modality: Modality  # what its inputs are
    source: str  # folder or hub id that holds tokenizer or image processor
    fingerprint: str  # hash of weights and dtype
    slo_ms: float  # target of requests that name none
    variants: list[OneshotVariant]  # by growing `variant`
    num_values: int  # floats in one result: embedding dimensions, or labels
    labels: list[str] = field(default_factory=list)  # of a classifier, by index
    created: int = 0  # wall-clock seconds
    emulated: bool = False  # it takes a GPU's time and answers fixed numbers
    is_loaded: bool = True  # False: the worker can load it on order
    static_bytes: int = 0  # of its weights
    dynamic_bytes: int = 0  # more while its largest batch runs


@dataclass(frozen=True, slots=True, kw_only=True)
class OneshotHold:
    """Scheduler to worker: the one-shot models that it is to hold, all of them. It loads those that
    it lacks and unloads the others, each once its batches have ended. Sent again until a report
    shows it.

    Attributes:
        fence, leadership: as in `BatchStart`.
        seq: grows under one fencing token; an order that arrives after a later one is void.
    """

    models: list[ModelId]  # their names
    fence: int
    seq: int
    leadership: str = SOLE_LEADERSHIP


@dataclass(frozen=True, slots=True, kw_only=True)
class OneshotLack:
    """A one-shot model that a worker was to load and could not, and why."""

    model_id: ModelId
    reason: str  # why it could not be loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmit:
    """One job to batch. Sent again with the same id if there is no answer; idempotent."""

    job_id: JobId
    model_id: ModelId
    fingerprint: str  # of the card that the input was made for
    variant: int
    slo_ns: int  # from the sending of this message to the deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSubmit:
    """Frontend to scheduler: what came in since the last such message."""

    frontend_id: FrontendId
    jobs: list[JobSubmit]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsCancel:
    """Frontend to scheduler: the clients hung up; what is not dispatched yet need not run."""

    job_ids: list[JobId]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRef:
    """A job and the frontend that holds its input."""

    job_id: JobId
    frontend_id: FrontendId


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStart:
    """Scheduler to worker: pull these inputs and run them as one batch.

    Attributes:
        fence: the leader's fencing token; a worker refuses tokens lower than the highest it saw in
            this leadership.
        leadership: which of the schedulers that work at the same time sent it.
        start_in_ns: when the scheduler expects the device to be free and the inputs to be there.
        expected_ns: how long the scheduler expects the batch to run.
    """

    batch_id: BatchId
    fence: int
    model_id: ModelId
    fingerprint: str
    variant: int
    jobs: list[JobRef]
    start_in_ns: int = 0
    expected_ns: int = 0
    leadership: str = SOLE_LEADERSHIP


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """Worker to scheduler: the device is done with a batch.

    Attributes:
        size: inputs that ran; fewer than were sent when clients hung up meanwhile.
        run_ns: on the device; 0 when nothing ran.
        wait_ns: from the receipt of the batch to its start.
        is_refused: not run at all: an old fence, an unknown model, or a worker that is leaving. The
            jobs may run elsewhere.
    """

    worker_id: WorkerId
    batch_id: BatchId
    fence: int
    model_id: ModelId
    variant: int
    size: int
    run_ns: int
    wait_ns: int = 0
    is_refused: bool = False
    leadership: str = SOLE_LEADERSHIP


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRef:
    """A batch that a worker holds, waiting or running."""

    batch_id: BatchId
    fence: int
    remaining_ns: int  # as far as the worker can tell
    jobs: list[JobRef] = field(default_factory=list)
    leadership: str = SOLE_LEADERSHIP


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPull:
    """Worker to frontend: give me these jobs' inputs."""

    job_ids: list[JobId]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """One input, ready for the model, or `gone` when its result is not wanted any more."""

    job_id: JobId
    gone: bool = False  # the result is not wanted any more
    tokens: str = ""  # packed int32
    segments: str = ""  # packed int32 token type ids of a pair; empty: all zero
    pixels: str = ""  # base64 of uint8 [height, width, 3]
    height: int = 0  # of the image, pixels
    width: int = 0  # of the image, pixels


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReply:
    """Answer to `InputPull`: the first of the inputs asked for, in order, as many as one message
    holds. Ask again for the rest.
    """

    inputs: list[JobInput]  # as many as one message holds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a model made of one input, or why it could not."""

    job_id: JobId
    values: str = ""  # base64 of float32: the embedding, the labels' probabilities, or the score
    code: str = ""  # set when it failed
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResults:
    """Worker to frontend: everything one batch made for this frontend."""

    results: list[JobResult]  # one a job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDropped:
    """One job that will not run."""

    job_id: JobId
    code: str
    message: str
    http_status: int = 503
    retry_after_s: float = 1.0  # how long a client should wait


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsDropped:
    """Scheduler to frontend: these jobs cannot make their deadlines, or cannot run at all."""

    jobs: list[JobDropped]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged:
    """A scheduler has begun to lead: workers report at once, frontends submit open jobs again."""

    instance: str
    fence: int
    leadership: str = SOLE_LEADERSHIP


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOffer:
    """Scheduler shard to rank process: this model has a schedulable batch, or none any more.

    Attributes:
        latest_in_ns: until the last instant at which the batch can start; None: none any more.
        delay_ns: how long before its start it must be dispatched.
    """

    shard: int  # number of the scheduler shard
    model_id: ModelId
    fingerprint: str
    variant: int
    seq: int  # grows; an offer that arrives after a later one is void
    latest_in_ns: int | None = None
    delay_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGrant:
    """Rank process to shard: the worker is yours, free in so long; answer with `RankBooked`."""

    grant_id: int  # to name in the answer
    model_id: ModelId
    fingerprint: str
    variant: int
    worker_id: WorkerId
    free_in_ns: int  # until the worker is free


NO_GRANT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBooked:
    """Scheduler shard to rank process: what became of a grant, and of jobs.

    Attributes:
        grant_id: `NO_GRANT`: only the counts are reported.
        end_in_ns: when the batch sent there will be over; None: nothing was sent.
        is_refused: nothing was sent because the shard cannot use this worker.
    """

    grant_id: int
    end_in_ns: int | None = None
    is_refused: bool = False
    num_good: int = 0  # jobs done in time since this shard's last such message
    num_bad: int = 0  # late or dropped since then


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleAdvice:
    """Scheduler to the autoscaler, once a second, for each language model and for all one-shot
    models together (section 3.5). At most one of `add` and `remove` is not 0. Of workers of
    one-shot models those to remove are the idle ones, which are those that came last; turns leave
    a worker that ends.

    Attributes:
        bad_rate: smoothed share of jobs late or dropped; of turns that wait for room, or whose
            steps take longer than their target.
        idle_share: smoothed share of the workers' time without a batch; of their seats or blocks
            that are free.
        model_id: a language model; None: the one-shot models.
    """

    num_workers: int  # ready
    add: int  # so many more workers would be of use
    remove: int  # so many workers could go
    bad_rate: float
    idle_share: float
    model_id: ModelId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipFence:
    """The highest fencing token that a worker saw in one leadership."""

    leadership: str
    fence: int
