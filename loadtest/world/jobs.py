"""One-shot jobs in the world: what a frontend, a scheduler and a worker each do for them."""

from collections.abc import Callable, Sequence

from loadtest.sim.oneshot import JOB_MODEL, batch_ns
from loadtest.sim.timeline import MS
from loadtest.world.alarm import Alarm
from loadtest.world.candidate import Candidate
from loadtest.world.desk import Desk
from loadtest.world.ledger import Ledger
from loadtest.world.process import Process
from loadtest.world.wires import Reply
from services.frontend.core.turns import job_events as fe
from services.frontend.core.turns.jobs import INPUT_MISSING, Jobs
from services.scheduler.core import ProbeWorker
from services.scheduler.core import jobs as sj
from services.scheduler.core.batching.job import Delays
from services.scheduler.policies import make_batcher
from shared.effects import WakeAt
from shared.ids import FrontendId, JobId, shard_of
from shared.wire.messages import (
    SOLE_LEADERSHIP,
    InputPull,
    JobInput,
    JobResults,
    LeaderChanged,
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
    WORKER_REPORT,
)

SHARD = "0"


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


class SchedulerJobs:
    """The batching core of a scheduler that leads."""

    def __init__(self, scheduler: Candidate, ledger: Ledger) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._wires = wires = scheduler.deployment.wires
        limits = sj.JobLimits()
        delays = Delays(limits.ctrl_ns, limits.data_ns, limits.slack_ns)
        self.core = core = sj.JobsCore(
            make_batcher("steady", delays), limits, fence=scheduler.fence,
            started_at_ns=scheduler.now_ns, name=scheduler.instance,
        )  # fmt: skip
        self._desk = desk = Desk(scheduler, core.on_wake, core.on_worker_gone, self._perform)
        desk.put(core.on_wake)
        wires.listen(scheduler, WORKER_REPORT, desk.feeding(core.on_report))
        wires.listen(scheduler, BATCH_DONE, desk.feeding(core.on_batch_done))
        wires.listen(scheduler, JOBS_SUBMIT, desk.feeding(core.on_jobs), SHARD)
        wires.listen(scheduler, JOBS_CANCEL, desk.feeding(core.on_cancel), SHARD)
        self.announce()

    def set_fence(self, fence: int) -> None:
        """The same process leads under another fence."""
        self.core.set_fence(fence)
        self.announce()

    def announce(self) -> None:
        """Tell everybody who leads."""
        scheduler = self._scheduler
        changed = LeaderChanged(
            instance=scheduler.instance,
            fence=scheduler.fence,
            leadership=SOLE_LEADERSHIP,
        )
        self._wires.send(scheduler, LEADER_CHANGED, changed)

    def _perform(self, effect: sj.JobsEffect) -> None:
        wires, scheduler = self._wires, self._scheduler
        match effect:
            case sj.SendBatch(worker_id, start):
                self._ledger.on_jobs([job.job_id for job in start.jobs], "run again")
                wires.send(scheduler, BATCH_START, start, worker_id)
            case sj.AnswerDropped(frontend_id, dropped):
                self._ledger.on_jobs([job.job_id for job in dropped.jobs], "dropped")
                wires.send(scheduler, JOBS_DROPPED, dropped, frontend_id)
            case ProbeWorker(worker_id):
                self._desk.probe(worker_id)
            case WakeAt(at_ns):
                self._desk.alarm.set(at_ns)
            case sj.Deposed(fence):
                scheduler.raise_fence(fence)
            case _:
                pass
