"""One-shot jobs in the simulation: what a frontend and a worker each do for them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from loadtest.sim.timeline import MS, Action
from loadtest.world.alarm import Alarm
from loadtest.world.process import Process
from loadtest.world.wires import Reply
from services.frontend.core.turns import job_events as fe
from services.frontend.core.turns.jobs import INPUT_MISSING, Jobs
from services.worker.oneshot import effects as we
from services.worker.oneshot.core import BatchCore
from shared.effects import WakeAt
from shared.ids import BatchId, FrontendId, JobId, ModelId, WorkerId, shard_of
from shared.wire.messages import (
    BatchStart,
    InputPull,
    JobInput,
    JobResults,
    LeaderChanged,
    OneshotCard,
    OneshotVariant,
)
from shared.wire.subjects import (
    BATCH_DONE,
    BATCH_START,
    INPUT_PULL,
    JOB_RESULTS,
    JOBS_CANCEL,
    JOBS_DROPPED,
    JOBS_SUBMIT,
    LEADER_CHANGED,
)

JOB_MODEL = ModelId("e")
SIZE_MAX = 8
SLO_NS = 200 * MS


def batch_ns(size: int) -> int:
    """Run time of a batch."""
    return (5 + 2 * size) * MS


def job_card() -> OneshotCard:
    """The one-shot model that every worker serves beside the generative one."""
    times = [batch_ns(size) for size in range(1, SIZE_MAX + 1)]
    return OneshotCard(
        model_id=JOB_MODEL, task="embed", modality="text", source="", fingerprint="e",
        slo_ms=SLO_NS / MS, variants=[OneshotVariant(variant=0, batch_ns=times)], num_values=1,
    )  # fmt: skip


def value_of(tokens: str) -> str:
    """What the model makes of an input."""
    return f"<{tokens}>"


class FrontendJobs:
    """A frontend's requests for one-shot models; `on_end` hears of each end."""

    def __init__(self, frontend: Process, frontend_id: FrontendId, num_shards: int) -> None:
        self._frontend = frontend
        self._wires = frontend.deployment.wires
        self._shard = shard_of(JOB_MODEL, num_shards)
        self.core = Jobs(frontend_id, fe.JobLimits())
        self._alarm = Alarm(frontend, self._wake)
        self._readers: dict[str, Callable[[fe.Done | fe.Fail], None]] = {}
        subscribe = self._wires.listen
        subscribe(frontend, INPUT_PULL, self._on_pull, frontend_id)
        subscribe(frontend, JOB_RESULTS, lambda m, _: self._on_results(m), frontend_id)
        subscribe(
            frontend, JOBS_DROPPED, lambda m, _: self._perform(self.core.on_dropped(m)), frontend_id
        )
        subscribe(frontend, LEADER_CHANGED, lambda *_: self.resubmit())

    def resubmit(self) -> None:
        """A new scheduler leads, or the bus was away."""
        self._perform(self.core.on_resubmit_all(self._frontend.now_ns))

    def open(
        self,
        request_id: str,
        tokens: Sequence[str],
        slo_ns: int,
        reader: Callable[[fe.Done | fe.Fail], None],
    ) -> None:
        """A client asks for a request of some inputs, to be answered within `slo_ns`."""
        now_ns = self._frontend.now_ns
        jobs = [
            fe.NewJob(
                variant=0, input=JobInput(job_id=JobId(f"{request_id}.{number}"), tokens=each)
            )
            for number, each in enumerate(tokens)
        ]
        self._readers[request_id] = reader
        new = fe.NewRequest(
            request_id=request_id, model_id=JOB_MODEL, fingerprint="e", shard=self._shard,
            jobs=jobs, arrived_at_ns=now_ns, deadline_at_ns=now_ns + slo_ns, fastest_ns=batch_ns(1),
        )  # fmt: skip
        self._perform(self.core.on_new(new, now_ns))

    def hang_up(self, request_id: str) -> None:
        """The client of this request went away."""
        self._readers.pop(request_id, None)
        self._perform(self.core.on_cancel(request_id))

    def _wake(self) -> bool:
        self._perform(self.core.on_wake(self._frontend.now_ns))
        return True

    def _on_pull(self, pull: InputPull, reply: Reply) -> None:
        effect = self.core.on_pull(pull, self._frontend.now_ns)[0]
        assert isinstance(effect, fe.AnswerPull)
        reply(effect.message)

    def _on_results(self, message: JobResults) -> None:
        self._perform(self.core.on_results(message, self._frontend.now_ns))
        for result in message.results:
            if result.code == INPUT_MISSING and result.job_id in self.core._of_job:
                self._expect_submit(result.job_id)

    def _expect_submit(self, job_id: JobId) -> None:
        """A batch missed this job's input: soon it is submitted again, if there is time."""
        heard_at_ns = self._frontend.now_ns

        def check() -> None:
            group = self.core._of_job.get(job_id)
            if group is not None and self._frontend.now_ns < group.new.deadline_at_ns:
                assert group.submitted_at_ns > heard_at_ns, f"{job_id} waits for nothing"

        self._frontend.later(self.core._limits.missed_ns + MS, check)

    def _perform(self, effects: Sequence[fe.Effect]) -> None:
        for effect in effects:
            match effect:
                case fe.Submit(shard, submit):
                    self._wires.send(self._frontend, JOBS_SUBMIT, submit, str(shard))
                case fe.Cancel(shard, cancel):
                    self._wires.send(self._frontend, JOBS_CANCEL, cancel, str(shard))
                case fe.Done() | fe.Fail():
                    self._readers.pop(effect.request_id)(effect)
                case WakeAt(at_ns):
                    self._alarm.set(at_ns)
                case fe.AnswerPull():
                    raise AssertionError("no prompt was pulled")


class WorkerJobs:
    """A worker's batches of one-shot jobs.

    Args:
        report: reports the worker's batches to the schedulers.
    """

    def __init__(self, worker: Process, worker_id: WorkerId, report: Action) -> None:
        self._worker = worker
        self._report = report
        self._wires = wires = worker.deployment.wires
        self.core = BatchCore(worker_id, [job_card()], we.BatchLimits())
        self._alarm = Alarm(worker, self._wake)
        self._running: BatchId | None = None
        wires.listen(worker, BATCH_START, lambda message, _: self._on_batch(message), worker_id)
        wires.listen(worker, LEADER_CHANGED, lambda message, _: self._on_leader(message))

    def _wake(self) -> bool:
        self._perform(self.core.on_wake(self._worker.now_ns))
        return True

    def _on_leader(self, changed: LeaderChanged) -> None:
        self.core.on_fence(changed.leadership, changed.fence)
        self._report()

    def _on_batch(self, start: BatchStart) -> None:
        """No batch of a leader is taken once a higher fence was seen."""
        seen, before = self.core.fence(start.leadership), self._held()
        self._perform(self.core.on_batch_start(start, self._worker.now_ns))
        is_new = start.batch_id in self._held() - before
        assert not (is_new and start.fence < seen), f"{start.batch_id} taken after fence {seen}"

    def _held(self) -> set[BatchId]:
        return {ref.batch_id for ref in self.core.refs(self._worker.now_ns)}

    def _perform(self, effects: Sequence[we.Effect]) -> None:
        worker = self._worker
        for effect in effects:
            match effect:
                case we.PullInputs():
                    self._pull(effect)
                case we.RunBatch():
                    self._run(effect)
                case we.SendResults(frontend_id, _, results):
                    message = JobResults(results=list(results))
                    self._wires.send(worker, JOB_RESULTS, message, frontend_id)
                case we.SendDone(done):
                    self._wires.send(worker, BATCH_DONE, done)
                case WakeAt(at_ns):
                    self._alarm.set(at_ns)

    def _pull(self, effect: we.PullInputs) -> None:
        def on_inputs(inputs: list[we.Pulled] | None) -> None:
            self._perform(
                self.core.on_inputs(
                    effect.batch_id, effect.frontend_id, inputs, self._worker.now_ns
                )
            )

        def on_reply(reply: Any) -> None:
            on_inputs(
                [
                    we.Pulled(job_id=job.job_id, value=job.tokens, is_gone=job.gone)
                    for job in reply.inputs
                ]
            )

        pull = InputPull(job_ids=list(effect.job_ids))
        self._wires.request(
            self._worker, INPUT_PULL, pull, on_reply, lambda _: on_inputs(None),
            ident=effect.frontend_id, timeout_ns=effect.timeout_ns,
        )  # fmt: skip

    def _run(self, effect: we.RunBatch) -> None:
        assert self._running is None, "two batches on one device"
        self._running = effect.batch_id
        run_ns = batch_ns(len(effect.values))
        values = [value_of(str(value)) for value in effect.values]
        ran = we.Ran(started_at_ns=self._worker.now_ns, run_ns=run_ns, values=values)
        self._worker.later(run_ns, partial(self._on_ran, effect.batch_id, ran))

    def _on_ran(self, batch_id: BatchId, ran: we.Ran) -> None:
        if self._running == batch_id:  # and was not stopped before
            self._running = None
            self._perform(self.core.on_ran(batch_id, ran, self._worker.now_ns))
