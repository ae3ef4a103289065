"""The one table of wires: every NATS subject with its message and its reply. Nothing else spells a
subject.

A ``*`` in a pattern is filled by `Subject.name` (a worker, frontend or host id). `reply` is None
for subjects that are published without an answer.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from shared.ids import subject_token
from shared.wire import messages as m

Request = TypeVar("Request")
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Subject(Generic[Request, Reply]):
    """One wire.

    Attributes:
        pattern: the subject, ``*`` where an id goes.
        request: message type sent.
        reply: type of the answer; `NoneType` when there is none.
        queue: queue group, when any one of several instances may take a message.
    """

    pattern: str
    request: type[Request]
    reply: type[Reply]
    queue: str = ""

    def name(self, *ids: str) -> str:
        """The concrete subject with `ids` in place of the stars, in order.

        >>> WORKER_START.name("w1")
        'symphony.worker.w1.start'
        """
        parts = self.pattern.split("*")
        assert len(parts) == len(ids) + 1, (
            f"{self.pattern} takes {len(parts) - 1} ids, got {len(ids)}"
        )
        out = parts[0]
        for token, rest in zip(ids, parts[1:], strict=True):
            out += subject_token(token) + rest
        return out


@dataclass(frozen=True, slots=True)
class Bucket(Generic[Request]):
    """One table of the key-value store in NATS (JetStream), declared like a wire.

    Attributes:
        name: letters, digits, ``-`` and ``_``.
        value: type of every value in it.
    """

    name: str
    value: type[Request]


NoReply = type(None)

# Public: what agent frameworks publish to.
ADVISORY_SUBMIT = Subject("symphony.advisory.submit", m.Advisory, m.AdvisoryState, queue="tracker")
ADVISORY_INVALIDATE = Subject(
    "symphony.advisory.invalidate", m.AdvisoryKey, m.AdvisoryState, queue="tracker"
)
ADVISORY_GET = Subject("symphony.advisory.get", m.AdvisoryKey, m.AdvisoryState, queue="tracker")
ADAPTER_LOAD = Subject("symphony.adapter.load", m.AdapterLoad, m.AdapterInfo, queue="frontend")
ADAPTER_UNLOAD = Subject(
    "symphony.adapter.unload", m.AdapterNamed, m.AdapterDeleted, queue="frontend"
)
ADAPTER_GET = Subject("symphony.adapter.get", m.AdapterNamed, m.AdapterInfo, queue="frontend")
ADAPTER_LIST = Subject("symphony.adapter.list", m.AdapterNamed, m.AdapterInfos, queue="frontend")
INFERENCE_SUBMIT = (
    "symphony.inference.submit"  # body and streamed replies are OpenAI JSON; see docs/nats.md
)


def _of_tenant(public: Subject[Request, Reply], queue: str = "") -> Subject[Request, Reply]:
    """The same of one tenant, with `queue` in place of its own if it is given."""
    pattern = public.pattern.replace("symphony.", "symphony.tenant.*.", 1)
    return Subject(pattern, public.request, public.reply, queue or public.queue)


# The star is the tenant's `tenant_token`. Where NATS has accounts it makes these of the ones above,
# which a tenant publishes in its own account: so no tenant can claim to be another.
TENANT_ADVISORY_SUBMIT = _of_tenant(ADVISORY_SUBMIT, queue="frontend")
TENANT_ADVISORY_INVALIDATE = _of_tenant(ADVISORY_INVALIDATE, queue="frontend")
TENANT_ADVISORY_GET = _of_tenant(ADVISORY_GET, queue="frontend")
TENANT_ADAPTER_LOAD = _of_tenant(ADAPTER_LOAD)
TENANT_ADAPTER_UNLOAD = _of_tenant(ADAPTER_UNLOAD)
TENANT_ADAPTER_GET = _of_tenant(ADAPTER_GET)
TENANT_ADAPTER_LIST = _of_tenant(ADAPTER_LIST)
TENANT_INFERENCE_SUBMIT = "symphony.tenant.*.inference.submit"
PUBLIC = {
    INFERENCE_SUBMIT: TENANT_INFERENCE_SUBMIT,
    ADVISORY_SUBMIT.pattern: TENANT_ADVISORY_SUBMIT.pattern,
    ADVISORY_INVALIDATE.pattern: TENANT_ADVISORY_INVALIDATE.pattern,
    ADVISORY_GET.pattern: TENANT_ADVISORY_GET.pattern,
    ADAPTER_LOAD.pattern: TENANT_ADAPTER_LOAD.pattern,
    ADAPTER_UNLOAD.pattern: TENANT_ADAPTER_UNLOAD.pattern,
    ADAPTER_GET.pattern: TENANT_ADAPTER_GET.pattern,
    ADAPTER_LIST.pattern: TENANT_ADAPTER_LIST.pattern,
}
"""What tenants publish, and what becomes of it."""

TENANT_REPLIES = "symphony.reply.*.>"
"""Answers to a tenant: what is published here arrives in its account in place of ``_INBOX.>``."""

# Frontend and scheduler: the star is a scheduler shard.
TURN_SUBMIT = Subject("symphony.scheduler.*.turn.submit", m.TurnsSubmit, NoReply)
TURN_CANCEL = Subject("symphony.scheduler.*.turn.cancel", m.TurnCancel, NoReply)
TURN_FAILED = Subject("symphony.frontend.*.failed", m.TurnFailed, NoReply)

# Worker and frontend: prompts down, tokens up, past the scheduler.
PROMPT_PULL = Subject("symphony.frontend.*.prompt", m.PromptPull, m.PromptReply)
STEP_OUTPUT = Subject("symphony.frontend.*.tokens", m.StepOutput, NoReply)

# Scheduler and worker.
WORKER_REPORT = Subject("symphony.worker.report", m.WorkerReport, NoReply)
WORKER_START = Subject("symphony.worker.*.start", m.TurnsStart, NoReply)
WORKER_CANCEL = Subject("symphony.worker.*.cancel", m.TurnCancel, NoReply)
WORKER_PREFETCH = Subject("symphony.worker.*.prefetch", m.Prefetch, NoReply)
WORKER_PREFETCH_DROP = Subject("symphony.worker.*.prefetch_drop", m.PrefetchDrop, NoReply)
WORKER_PING = Subject("symphony.worker.*.ping", m.Empty, m.Empty)
TURNS_ENDED = Subject("symphony.scheduler.turn.ended", m.TurnsEnded, NoReply)
TURN_PREFETCHED = Subject("symphony.scheduler.turn.prefetched", m.TurnPrefetched, NoReply)

# Schedulers among themselves, where turns are divided.
TURNS_PLACED = Subject("symphony.scheduler.turn.placed", m.TurnsPlaced, NoReply)
SCHEDULER_PING = Subject("symphony.scheduler.*.ping", m.Empty, m.Empty)

# Jobs of one-shot models: the first star is a scheduler shard, a frontend or a worker.
JOBS_SUBMIT = Subject("symphony.scheduler.*.jobs", m.JobsSubmit, NoReply)
JOBS_CANCEL = Subject("symphony.scheduler.*.jobs.cancel", m.JobsCancel, NoReply)
JOBS_DROPPED = Subject("symphony.frontend.*.dropped", m.JobsDropped, NoReply)
BATCH_START = Subject("symphony.worker.*.batch", m.BatchStart, NoReply)
ONESHOT_HOLD = Subject("symphony.worker.*.oneshot", m.OneshotHold, NoReply)
BATCH_DONE = Subject("symphony.scheduler.batch.done", m.BatchDone, NoReply)
INPUT_PULL = Subject("symphony.frontend.*.inputs", m.InputPull, m.InputReply)
JOB_RESULTS = Subject("symphony.frontend.*.results", m.JobResults, NoReply)
RANK_OFFER = Subject("symphony.rank.offer", m.RankOffer, NoReply)
RANK_BOOKED = Subject("symphony.rank.booked", m.RankBooked, NoReply)
RANK_GRANT = Subject("symphony.scheduler.*.grant", m.RankGrant, NoReply)
AUTOSCALE_ADVICE = Subject("symphony.autoscale.advice", m.AutoscaleAdvice, NoReply)
LEADER_CHANGED = Subject("symphony.scheduler.leader", m.LeaderChanged, NoReply)
LEASE_WRITTEN = Subject("symphony.lease.*", m.LeaseWritten, NoReply)
# Outside of `symphony.`: a monitor of all those subjects must not look like a holder.
LEASE_HOLDER = Subject("symphony-lease.*.holder", m.Empty, m.LeaseHolder)

# Tracker and scheduler: the star is a scheduler shard.
SESSION_EXPECT = Subject("symphony.scheduler.*.session.expect", m.ExpectSession, m.SessionPlacement)
SESSION_DROP = Subject("symphony.scheduler.*.session.drop", m.AdvisoryKey, m.Empty)
SESSION_PLACED = Subject("symphony.session.placed", m.SessionPlaced, NoReply)
TURN_ARRIVED = Subject("symphony.tracker.turn.arrived", m.TurnArrived, NoReply)
AGENT_TURN_LEFT = Subject("symphony.tracker.turn.left", m.AgentTurnLeft, NoReply)
HINTS_ENDED = Subject("symphony.frontend.*.hints", m.HintsEnded, NoReply)


def of_tracker_shard(undivided: Subject[Request, Reply]) -> Subject[Request, Reply]:
    """The same wire to one shard of a divided tracker, which takes what comes there as its own."""
    rest = undivided.pattern.removeprefix("symphony.").removeprefix("tracker.")
    pattern = f"symphony.tracker.*.{rest}"
    return Subject(pattern, undivided.request, undivided.reply, undivided.queue)


# The star is the number of a tracker shard.
SHARD_ADVISORY_SUBMIT = of_tracker_shard(ADVISORY_SUBMIT)
SHARD_ADVISORY_INVALIDATE = of_tracker_shard(ADVISORY_INVALIDATE)
SHARD_ADVISORY_GET = of_tracker_shard(ADVISORY_GET)
SHARD_TURN_ARRIVED = of_tracker_shard(TURN_ARRIVED)
SHARD_AGENT_TURN_LEFT = of_tracker_shard(AGENT_TURN_LEFT)
TURNS_FORESEEN = Subject("symphony.tracker.*.turn.foreseen", m.TurnsForeseen, NoReply)

# Worker and the kvstore of its host.
KV_OPEN = Subject("symphony.kv.*.open", m.KvOpen, m.KvOpened)
KV_LEASE = Subject("symphony.kv.*.lease", m.KvLease, m.KvLeased)
KV_STAGE = Subject("symphony.kv.*.stage", m.KvStage, m.KvStaged)
KV_LOCATE = Subject("symphony.kv.*.locate", m.KvLocate, m.KvLocated)
# All hosts get it. Those without any of these blocks do not answer.
KV_FIND = Subject("symphony.kv.find", m.KvLocate, m.KvLocated)
KV_RENEW = Subject("symphony.kv.*.renew", m.KvRenew, m.KvRenewed)
KV_RELEASE = Subject("symphony.kv.*.release", m.KvRelease, NoReply)
KV_COMMIT = Subject("symphony.kv.*.commit", m.KvCommit, m.KvCommitted)

# Adapters: the star is a host, or the frontend that was sent the files.
ADAPTER_ADD = Subject("symphony.kv.*.adapter.add", m.AdapterAdd, m.AdapterRecord)
ADAPTER_ADD_ANYWHERE = Subject(
    "symphony.adapter.add", m.AdapterAdd, m.AdapterRecord, queue="kvstore"
)
ADAPTER_REMOVE = Subject("symphony.kv.*.adapter.remove", m.AdapterRemove, m.AdapterRecord)
ADAPTER_CHANGED = Subject("symphony.adapter.changed", m.AdapterChanged, NoReply)
ADAPTER_FETCH = Subject("symphony.kv.*.adapter.fetch", m.AdapterFetch, m.Empty)
# All hosts get it. Those without the files do not answer.
ADAPTER_FIND = Subject("symphony.adapter.find", m.AdapterFind, m.AdapterFound)
ADAPTERS_USED = Subject("symphony.adapter.used", m.AdaptersUsed, NoReply)
UPLOAD_PULL = Subject("symphony.frontend.*.upload", m.UploadPull, m.UploadPart)

# Everyone.
SESSION_FORGET = Subject("symphony.session.forget", m.SessionForget, m.SessionForgotten)
SESSION_DELETE = Subject("symphony.session.delete", m.KvDelete, m.KvDeleted)
KV_STATS = Subject("symphony.kv.stats", m.Empty, m.KvStats)
SCHEDULER_STATUS = Subject("symphony.scheduler.status", m.Empty, m.SchedulerStatus)
SERVICE_METRICS = Subject("symphony.service.metrics", m.MetricsWanted, m.ServiceMetrics)
SERVICE_STATUS = Subject("symphony.service.status", m.Empty, m.ServiceStatus)

# The key-value store: a key is one leadership.
LEASES = Bucket("symphony-leases", m.LeaderLease)
