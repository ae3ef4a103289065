"""A frontend with inputs and a scheduler that sends batches, as far as a worker sees of them."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shared.bus import Bus
from shared.ids import BatchId, FrontendId, JobId, ModelId
from shared.wire.messages import (
    BatchDone,
    BatchStart,
    InputPull,
    InputReply,
    JobInput,
    JobRef,
    JobResult,
    JobResults,
    LeaderChanged,
    WorkerReport,
)
from shared.wire.subjects import (
    BATCH_DONE,
    BATCH_START,
    INPUT_PULL,
    JOB_RESULTS,
    LEADER_CHANGED,
    WORKER_REPORT,
)
from tests.integration.harness import connected, eventually


@dataclass
class FakeFrontend:
    """Answers pulls from `inputs`, at most `num_per_reply` at a time; keeps results."""

    bus: Bus
    frontend_id: FrontendId
    num_per_reply: int = 100
    inputs: dict[str, JobInput] = field(default_factory=dict)
    pulls: list[InputPull] = field(default_factory=list)
    messages: list[JobResults] = field(default_factory=list)

    async def start(self) -> None:
        await self.bus.serve(INPUT_PULL, self._on_pull, self.frontend_id)
        await self.bus.subscribe(JOB_RESULTS, self.messages.append, self.frontend_id)
        await self.bus.flush()

    def add(self, job: JobInput) -> JobRef:
        self.inputs[job.job_id] = job
        return JobRef(job_id=job.job_id, frontend_id=self.frontend_id)

    @property
    def results(self) -> dict[str, JobResult]:
        return {r.job_id: r for message in self.messages for r in message.results}

    async def _on_pull(self, pull: InputPull) -> InputReply:
        self.pulls.append(pull)
        given = pull.job_ids[: self.num_per_reply]
        gone = [JobInput(job_id=JobId(job_id), gone=True) for job_id in given]
        return InputReply(inputs=[self.inputs.get(job.job_id, job) for job in gone])


@dataclass
class FakeScheduler:
    """Hears reports and ends of batches; sends what a test tells it to."""

    bus: Bus
    reports: list[WorkerReport] = field(default_factory=list)
    done: list[BatchDone] = field(default_factory=list)
    fence: int = 1

    async def start(self) -> None:
        await self.bus.subscribe(WORKER_REPORT, self.reports.append)
        await self.bus.subscribe(BATCH_DONE, self.done.append)
        await self.bus.flush()

    async def ready_report(self) -> WorkerReport:
        await eventually(lambda: bool(self.reports) and self.reports[-1].state == "ready")
        return self.reports[-1]

    async def dispatch(
        self,
        worker: WorkerReport,
        name: str,
        jobs: list[JobRef],
        *,
        model: str = "",
        variant: int = -1,
    ) -> BatchStart:
        card = next(c for c in worker.oneshot if not model or c.model_id == model)
        start = BatchStart(
            batch_id=BatchId(name),
            fence=self.fence,
            model_id=ModelId(card.model_id),
            fingerprint=card.fingerprint,
            variant=card.variants[-1].variant if variant < 0 else variant,
            jobs=jobs,
        )
        await self.bus.publish(BATCH_START, start, worker.worker_id)
        return start

    async def lead(self, fence: int) -> None:
        self.fence = fence
        await self.bus.publish(LEADER_CHANGED, LeaderChanged(instance="s", fence=fence))

    async def done_of(self, name: str) -> BatchDone:
        await eventually(lambda: any(done.batch_id == name for done in self.done))
        return next(done for done in self.done if done.batch_id == name)


@dataclass
class House:
    scheduler: FakeScheduler
    frontends: list[FakeFrontend]


@asynccontextmanager
async def house(url: str, num_frontends: int = 1) -> AsyncIterator[House]:
    async with connected(url) as bus:
        frontends = [FakeFrontend(bus, FrontendId(f"f{n}")) for n in range(num_frontends)]
        scheduler = FakeScheduler(bus)
        await scheduler.start()
        for frontend in frontends:
            await frontend.start()
        yield House(scheduler, frontends)


def unpack(result: JobResult) -> npt.NDArray[np.float32]:
    assert not result.code, result.message
    return np.frombuffer(base64.b64decode(result.values), "<f4")
