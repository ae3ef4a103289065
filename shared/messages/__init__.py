"""Every message that crosses a process border: frozen, slotted, typed; JSON on the wire, validated
on arrival.

New fields get defaults, so that services of two releases understand each other. Instants on the
wire are wall clock; anything that must survive clock skew is a duration. Bulk integers travel as
base64 (`codec.pack_ints`).
"""

from shared.messages.advisories import (
    Advisory,
    AdvisoryKey,
    AdvisoryLife,
    AdvisoryState,
    ExpectSession,
    SessionPlacement,
    TurnArrived,
)
from shared.messages.codec import decode, encode, pack_ints, unpack_ints
from shared.messages.kv import (
    KvBlock,
    KvCommit,
    KvCommitted,
    KvDelete,
    KvDeleted,
    KvLease,
    KvLeased,
    KvOpen,
    KvOpened,
    KvRelease,
    KvStage,
    KvStaged,
    KvStats,
)
from shared.messages.services import Empty, SchedulerStatus, ServiceStatus, WorkerStatus
from shared.messages.turns import (
    FinishReason,
    Prompt,
    PromptPull,
    PromptReply,
    SamplingParams,
    StepOutput,
    TokenLogprobs,
    TurnCancel,
    TurnDelta,
    TurnEnd,
    TurnFailed,
    TurnRef,
    TurnsEnded,
    TurnStart,
    TurnSubmit,
)
from shared.messages.workers import ModelCard, Prefetch, WorkerReport

__all__ = [
    "Advisory",
    "AdvisoryKey",
    "AdvisoryLife",
    "AdvisoryState",
    "Empty",
    "ExpectSession",
    "FinishReason",
    "KvBlock",
    "KvCommit",
    "KvCommitted",
    "KvDelete",
    "KvDeleted",
    "KvLease",
    "KvLeased",
    "KvOpen",
    "KvOpened",
    "KvRelease",
    "KvStage",
    "KvStaged",
    "KvStats",
    "ModelCard",
    "Prefetch",
    "Prompt",
    "PromptPull",
    "PromptReply",
    "SamplingParams",
    "SchedulerStatus",
    "ServiceStatus",
    "SessionPlacement",
    "StepOutput",
    "TokenLogprobs",
    "TurnArrived",
    "TurnCancel",
    "TurnDelta",
    "TurnEnd",
    "TurnFailed",
    "TurnRef",
    "TurnStart",
    "TurnSubmit",
    "TurnsEnded",
    "WorkerReport",
    "WorkerStatus",
    "decode",
    "encode",
    "pack_ints",
    "unpack_ints",
]
