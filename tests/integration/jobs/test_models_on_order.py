"""Scheduler and workers on a real bus: one-shot models are loaded and unloaded as their popularity
shifts, while requests of all of them are answered.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from services.scheduler import job_service
from services.scheduler.config import SchedulerConfig
from services.scheduler.core.jobs import JobLimits
from services.scheduler.core.partition.limits import SubclusterLimits
from services.scheduler.service import main as scheduler_main
from services.worker.config import WorkerConfig
from services.worker.service import main as worker_main
from shared.bus import Bus
from shared.ids import FrontendId, HostId, JobId, ModelId
from shared.wire.messages import JobInput as Input
from shared.wire.messages import JobsDropped, JobsSubmit, JobSubmit, WorkerReport, pack_ints
from shared.wire.subjects import JOBS_DROPPED, JOBS_SUBMIT, WORKER_REPORT
from tests.conftest import Server
from tests.integration.harness import connected, eventually, running
from tests.integration.worker.oneshot.peers import FakeFrontend
from tests.unit.worker.oneshot.models import make_classifier

S = 1_000_000_000
LIMITS = SubclusterLimits(
    window_ns=S, learning_ns=S // 2, forget_ns=2 * S, missing_ns=S, repartition_ns=5 * S
)
ONE_MODEL_BYTES = 200_000  # of which a model takes 135,000: not two
SLO_MS = 20_000.0


@dataclass
class Asker:
    """A frontend with jobs, which hears what workers hold.

    Attributes:
        holds: models loaded, by worker.
        codes: why jobs were dropped.
    """

    bus: Bus
    frontend: FakeFrontend
    holds: dict[str, set[str]] = field(default_factory=dict)
    reports: dict[str, WorkerReport] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    _names: Any = field(default_factory=count)

    async def start(self) -> None:
        await self.frontend.start()
        await self.bus.subscribe(WORKER_REPORT, self._on_report)
        await self.bus.subscribe(JOBS_DROPPED, self._on_dropped, self.frontend.frontend_id)

    @property
    def num_copies(self) -> dict[str, int]:
        models = [model for held in self.holds.values() for model in held]
        return {model: models.count(model) for model in models}

    async def submit(self, model: str, slo_ms: float = SLO_MS) -> str:
        name = f"{model}-{next(self._names)}"
        card = next(c for r in self.reports.values() for c in r.oneshot if c.model_id == model)
        self.frontend.add(Input(job_id=JobId(name), tokens=pack_ints([2, 5, 3])))
        job = JobSubmit(
            job_id=JobId(name), model_id=ModelId(model), fingerprint=card.fingerprint,
            variant=card.variants[-1].variant, slo_ns=int(slo_ms * 1e6),
        )  # fmt: skip
        message = JobsSubmit(frontend_id=self.frontend.frontend_id, jobs=[job])
        await self.bus.publish(JOBS_SUBMIT, message, "0")
        return name

    async def end_of(self, name: str) -> str:
        """ "" where the job has a result, else why it has none."""
        await eventually(lambda: name in self.frontend.results or name in self.codes, 25.0)
        return self.codes.get(name) or self.frontend.results[name].code

    async def ask_until_copies(self, popular: str, others: Iterable[str], num: int) -> set[str]:
        """Ask for one model much and for others little, until so many workers have it.

        Returns:
            How the jobs ended.
        """
        names = []
        async with asyncio.timeout(60):
            while self.num_copies.get(popular, 0) < num:
                for model in (popular, popular, popular, *others):
                    names.append(await self.submit(model))
                await asyncio.sleep(0.1)  # the pace of the requests
        return {await self.end_of(name) for name in names}

    def _on_report(self, report: WorkerReport) -> None:
        self.reports[report.worker_id] = report
        if report.state == "ready":
            loaded = {str(card.model_id) for card in report.oneshot if card.is_loaded}
            self.holds[report.worker_id] = loaded

    def _on_dropped(self, dropped: JobsDropped) -> None:
        self.codes |= {job.job_id: job.code for job in dropped.jobs}


@asynccontextmanager
async def deployment(
    server: Server, folder: Path, num_workers: int, models: Iterable[str]
) -> AsyncIterator[Asker]:
    """A scheduler, and workers whose memory takes one of these models."""
    sources = [str(make_classifier(folder / name)) for name in models]
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(connected(server.url))
        asker = Asker(bus, FakeFrontend(bus, FrontendId("f")))
        await asker.start()
        settings = SchedulerConfig(nats_url=server.url, scheduler_learning_s=0.1)
        await stack.enter_async_context(running(scheduler_main, settings, "scheduler"))
        for number in range(num_workers):
            config = WorkerConfig(  # type: ignore[call-arg]
                nats_url=server.url, data_dir=folder, host_id=HostId("h"), instance=str(number),
                device="cpu", num_threads=1, oneshot_profile_s=0.1, oneshot_batch_max=1,
                oneshot_slo_ms=SLO_MS, models=sources, oneshot_bytes=ONE_MODEL_BYTES,
            )  # fmt: skip
            await stack.enter_async_context(running(worker_main, config, "worker"))
        yield asker


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_service, "JobLimits", partial(JobLimits, subclusters=LIMITS))


def test_workers_follow_the_load(nats_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, tmp_path, 3, ["a", "b"]) as asker:
            assert await asker.ask_until_copies("a", ["b"], 2) == {""}
            assert await asker.ask_until_copies("b", ["a"], 2) == {""}
            assert all(len(held) <= 1 for held in asker.holds.values())

    asyncio.run(scenario())


def test_a_model_in_demand_takes_the_place_of_an_idle_one(
    nats_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, tmp_path, 2, ["a", "b", "c"]) as asker:
            await asker.ask_until_copies("a", [], 1)
            await asker.ask_until_copies("b", ["a"], 1)
            # Nothing is free for it: jobs wait, and some are answered once it is loaded.
            ends = await asker.ask_until_copies("c", ["a"], 1)
            assert "" in ends and ends <= {"", "no_worker"}
            assert await asker.end_of(await asker.submit("a")) == ""
            assert await asker.end_of(await asker.submit("b", slo_ms=200)) == "no_worker"

    asyncio.run(scenario())
