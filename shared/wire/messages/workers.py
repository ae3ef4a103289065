"""What workers tell about themselves and what they are asked to prepare."""

from dataclasses import dataclass, field
from typing import Literal

from shared.blocks import BLOCK_TOKENS
from shared.ids import (
    DEFAULT_TENANT,
    FrontendId,
    HostId,
    ModelId,
    SessionId,
    TenantId,
    TurnId,
    WorkerId,
)
from shared.wire.messages.adapters import AdapterRef, LoraCard
from shared.wire.messages.jobs import BatchRef, LeadershipFence, OneshotCard, OneshotLack
from shared.wire.messages.services import StartStage
from shared.wire.messages.turns import TurnRef


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """How to sample for requests that do not say: what ``generation_config.json`` advises."""

    temperature: float = 1.0  # 0: always the likeliest token
    top_p: float = 1.0  # draw from the likeliest tokens of this probability together; 1: off
    top_k: int = 0  # draw from so many of the likeliest tokens; 0: off
    min_p: float = 0.0  # none below this share of the likeliest's probability; 0: off
    repetition_penalty: float = 1.0  # divides logits of tokens in prompt and reply; 1: off


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model as one worker serves it: enough for the frontend to tokenize and for anyone to name
    its KV.
    """

    model_id: ModelId
    source: str  # folder or hub id that holds tokenizer and chat template
    fingerprint: str  # hash of weights, dtype and KV layout; root of every block key
    max_model_len: int  # tokens, prompt and output together
    block_tokens: int = BLOCK_TOKENS  # tokens of a block of KV
    created: int = 0  # wall-clock seconds
    emulated: bool = False  # it takes a GPU's time and answers a fixed sentence
    # what requests get that do not say
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    vocab_size: int = 0  # token ids that it can read and say; 0: not known
    lora: LoraCard | None = None  # what adapters it takes; None: none
    takes_images: bool = False  # in users' messages
    short_rope_max: int = 0  # longer sequences have KV of their own, see `sequence_root`; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModelFit:
    """What a worker's decode steps take: ``base + row * rows + unit * units``, ns.

    Attributes:
        name: what the units are: ``padded``: rows times the largest rank; ``unpadded``: the sum of
            their ranks; ``distinct``: bytes of different adapters.
        r2: how much of the steps' differences it explains.
    """

    model_id: ModelId
    name: str
    base_ns: float  # a step's own time
    row_ns: float  # more for each turn in it
    unit_ns: float  # more for each unit
    r2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpeeds:
    """How fast a worker is with one model, as it measured lately; 0: not known. For placement."""

    model_id: ModelId
    token_ms: float = 0.0  # a prompt token more in a step
    step_ms: float = 0.0  # a step without any rows
    row_ms: float = 0.0  # a decoding turn more in a step
    mean_rows: int = 0  # of the steps that this was learned from: there it is exact
    block_bytes: int = 0  # KV of a block in all layers
    load_bytes_per_s: float = 0.0  # from the host's arena into the pool
    source_bytes_per_s: float = 0.0  # from the host's disk into the arena
    peer_bytes_per_s: dict[HostId, float] = field(default_factory=dict)  # from other hosts
    adapter_load_ms: float = 0.0  # an adapter's image, from where it was to the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoom:
    """What one model's turns find on a worker.

    Attributes:
        num_turns: of that model that are held there, running or waiting.
        num_blocks_free: that turns to come can take, evicting what is idle: less than 0 if the
            turns that wait there will take more than there is.
    """

    model_id: ModelId
    num_turns: int = 0
    num_blocks: int = 0  # of the GPU KV pool; 0: not known
    num_blocks_free: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Heartbeat: the whole state a scheduler needs, so that a new scheduler rebuilds its view from
    reports alone.
    """

    worker_id: WorkerId
    incarnation: str  # fresh at every start of the process
    seq: int  # counts reports of this incarnation from 1
    host_id: HostId
    state: Literal["loading", "ready", "draining"]
    models: list[ModelCard] = field(default_factory=list)  # models that it serves turns of
    turns: list[TurnRef] = field(
        default_factory=list
    )  # every attempt held here, running or waiting
    has_kvstore: bool = False  # a kvstore on its host has answered it
    num_running: int = 0  # turns that join steps
    num_waiting: int = 0  # turns without a first token yet
    num_waiting_tokens: int = 0  # prompt tokens not yet prefilled
    num_pages: int = 0
    num_pages_free: int = 0
    num_pages_clean: int = 0
    num_pages_dirty: int = 0
    interval_ns: int = 500_000_000  # when to expect the next report
    pid: int = 0
    oneshot: list[OneshotCard] = field(default_factory=list)  # one-shot models that it serves
    oneshot_bytes: int = 0  # for one-shot models loaded on order; 0: it keeps those that it has
    oneshot_lacks: list[OneshotLack] = field(default_factory=list)  # it could not load these
    batches: list[BatchRef] = field(default_factory=list)  # every batch held here
    # the highest token seen from each leader
    fences: list[LeadershipFence] = field(default_factory=list)
    adapters: str = ""  # packed hashes of those in its pools, the ones used last first
    turns_running_max: int = 0  # in one step of a model; 0: not known
    rooms: list[ModelRoom] = field(default_factory=list)  # free room of each model
    step_models: list[StepModelFit] = field(default_factory=list)  # fitted step times of each model
    speeds: list[ModelSpeeds] = field(default_factory=list)  # now and then; empty: as reported last
    stage: StartStage | None = None  # of its start, while `loading`


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTurn:
    """One that may move, and the frontend that has its tokens."""

    turn_id: TurnId
    frontend_id: FrontendId
    session_id: SessionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """Scheduler to worker: this session's turn is coming; prefetch its KV, lowest layers first, so
    that it is there when the turn is."""

    session_id: SessionId
    model_id: ModelId
    tenant: TenantId = DEFAULT_TENANT
    priority: int = 1
    expires_in_ns: int = 60_000_000_000
    adapter: AdapterRef | None = None  # that the turn will run on
    arrives_in_ns: int = 0  # when it is expected; 0: at any time
    num_tokens: int = 0  # of the prompt of the session's last turn; 0: not known
    kv_at: dict[HostId, int] = field(default_factory=dict)  # leading blocks of it by host
    keys: str = ""  # packed: of these blocks, and the session has no record; empty: it has
    trace: str = ""  # of the advisory
    running: RunningTurn | None = None  # it runs elsewhere: its tokens so far say what it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchDrop:
    """Scheduler to worker: the turn of an earlier `Prefetch` is not coming, or not there."""

    session_id: SessionId
    model_id: ModelId
    tenant: TenantId = DEFAULT_TENANT


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlaced:
    """Scheduler to all frontends: this worker keeps a place for the session's turn."""

    session_id: SessionId
    model_id: ModelId
    worker_id: WorkerId
    tenant: TenantId = DEFAULT_TENANT
    expires_in_ns: int = 60_000_000_000
    kv_at: dict[HostId, int] = field(default_factory=dict)  # as in `TurnSubmit`
