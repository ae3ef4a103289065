"""Events and effects of the batch core."""

from dataclasses import dataclass

from shared.effects import WakeAt
from shared.ids import BatchId, FrontendId, JobId, ModelId
from shared.wire.messages import BatchDone, JobResult


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Attributes:
    batches_max: batches held at a time, running or not; more are refused.
    pull_wait_ns: how long after its expected start a batch waits for inputs that do not come.
    start_in_max_ns: the longest time until its start that a batch is granted for its pulls.
    remember_ns: how long an ended batch is known, so that its twin does not run.
    remembered_max: ended batches known at a time.
    results_bytes_max: of values in one message of results.
    run_min_ns, run_factor: a batch that runs longer than the first, and than so many times what its
        profile says, counts as stuck.
    models_bytes_max: for models that are loaded on order; 0: all are loaded, and stay so.
    """

    batches_max: int = 16
    pull_wait_ns: int = 50_000_000
    start_in_max_ns: int = 10_000_000_000
    remember_ns: int = 120_000_000_000
    remembered_max: int = 4096
    results_bytes_max: int = 524_288
    run_min_ns: int = 30_000_000_000
    run_factor: int = 20
    models_bytes_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """One input as a frontend's answer gave it.

    Attributes:
        value: ready for the model, which alone knows what it is.
        is_gone: its result is not wanted any more.
        error: why the model cannot take it; empty if it can.
    """

    job_id: JobId
    value: object = None
    is_gone: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a run on the device ended.

    Attributes:
        values: packed results in the order of the inputs, empty where the model's numbers were not
            finite; None: it failed or was stopped.
        error: why it failed; empty if it did not.
    """

    started_at_ns: int
    run_ns: int
    values: list[str] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class PullInputs:
    """Ask a frontend for inputs, the answer to be there in `timeout_ns`."""

    batch_id: BatchId
    model_id: ModelId
    variant: int
    frontend_id: FrontendId
    job_ids: tuple[JobId, ...]
    timeout_ns: int


@dataclass(frozen=True, slots=True)
class RunBatch:
    """The device is free and the inputs are here. Answered by `BatchCore.on_ran`; a batch that is
    not over `limit_ns` after it began is stuck, and so is the device.
    """

    batch_id: BatchId
    model_id: ModelId
    variant: int
    values: tuple[object, ...]
    limit_ns: int


@dataclass(frozen=True, slots=True)
class SendResults:
    """Send a frontend the results of its jobs."""

    frontend_id: FrontendId
    batch_id: BatchId
    results: tuple[JobResult, ...]


@dataclass(frozen=True, slots=True)
class SendDone:
    """Report to the scheduler that a batch is over, or was refused."""

    done: BatchDone


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load a model while others serve. Answered by `BatchCore.on_loaded`."""

    model_id: ModelId


@dataclass(frozen=True, slots=True)
class UnloadModel:
    """Free the memory of a model that no batch uses. Answered by `BatchCore.on_unloaded`."""

    model_id: ModelId


Effect = PullInputs | RunBatch | SendResults | SendDone | LoadModel | UnloadModel | WakeAt
