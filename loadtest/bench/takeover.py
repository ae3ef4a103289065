"""``symphony bench takeover``: how long nobody batches after the leading scheduler was killed.

Real processes on a NATS server of their own: schedulers with one lease, an emulated worker, and a
client that submits a job as soon as it hears of a new leader, as frontends do. In each round the
leader is killed at a random instant, in the way of `kill -9`.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from loadtest.jobs.cluster import Cluster, open_cluster
from loadtest.simulator.models import linear_model
from services.worker.oneshot.emulated import emulated_fingerprint
from shared.ids import FrontendId, JobId, ModelId
from shared.messages import (
    BatchStart,
    Empty,
    JobsSubmit,
    JobSubmit,
    LeaderChanged,
)
from shared.subjects import BATCH_START, JOBS_SUBMIT, LEADER_CHANGED, SERVICE_STATUS
from shared.tasks import Tasks

MODEL = linear_model("encoder", alpha_ms=1.0, beta_ms=5.0, slo_ms=5000.0)
SETTLE_S = 0.5  # until a spare has heard the leader
ANSWER_WITHIN_S = 30.0


def run(argv: list[str]) -> dict[str, Any]:
    """Kill leaders, and return how long the next one took to lead and to send a batch."""
    parser = argparse.ArgumentParser(prog="symphony bench takeover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    took_ms = uvloop.run(_measure(args))
    result: dict[str, Any] = {"rounds": args.rounds, "spares": args.spares}
    for name, values in zip(("leads", "serves"), zip(*took_ms, strict=True), strict=True):
        result[f"{name}_ms_p50"] = round(_percentile(values, 0.5), 1)
        result[f"{name}_ms_max"] = round(max(values), 1)
    print(
        f"a spare leads after {result['leads_ms_p50']:g} ms (longest {result['leads_ms_max']:g}), "
        f"its first batch goes after {result['serves_ms_p50']:g} ms "
        f"(longest {result['serves_ms_max']:g})"
    )
    return result


class _Witness:
    """Hears of leaders and batches; submits one job to each new leader."""

    def __init__(self, cluster: Cluster) -> None:
        self._bus = cluster.bus
        self._worker_ids = cluster.workers
        self._num_jobs = 0
        self._tasks = Tasks("submitting failed")
        self.leader = asyncio.Event()
        self.batch = asyncio.Event()
        self.instance = ""
        self._fence = 0
        self.leads_at_ns = self.serves_at_ns = 0

    async def listen(self) -> None:
        await self._bus.subscribe(LEADER_CHANGED, self._on_leader)
        for worker_id in self._worker_ids:
            await self._bus.subscribe(BATCH_START, self._on_batch, worker_id)
        await self._bus.flush()

    def _on_leader(self, changed: LeaderChanged) -> None:
        self.leads_at_ns, self.instance = time.monotonic_ns(), changed.instance
        self._fence = changed.fence
        self.leader.set()
        self._tasks.spawn(self.submit())

    def _on_batch(self, batch: BatchStart) -> None:
        if batch.fence == self._fence and not self.batch.is_set():
            self.serves_at_ns = time.monotonic_ns()
            self.batch.set()

    async def submit(self) -> None:
        """One job with a target that is far away."""
        self._num_jobs += 1
        job = JobSubmit(
            job_id=JobId(f"job-{self._num_jobs}"),
            model_id=ModelId(MODEL.name),
            fingerprint=emulated_fingerprint(MODEL.name),
            variant=0,
            slo_ns=int(MODEL.slo_ms * 1e6),
        )
        message = JobsSubmit(frontend_id=FrontendId("bench"), jobs=[job])
        await self._bus.publish(JOBS_SUBMIT, message, "0")


async def _measure(args: argparse.Namespace) -> list[tuple[float, float]]:
    rng = random.Random(args.seed)
    took_ms = []
    async with open_cluster([MODEL], 1, policy="eager") as cluster:
        witness = _Witness(cluster)
        await witness.listen()
        names = ["scheduler", *(f"spare-{number}" for number in range(args.spares))]
        for name in names[1:]:
            _start(cluster, name)
        leader = names[0]
        for _ in range(args.rounds):
            await _wait_ready(cluster, names)
            await asyncio.sleep(SETTLE_S + rng.random())
            witness.leader.clear()
            witness.batch.clear()
            killed_at_ns = time.monotonic_ns()
            cluster.kill(leader)
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await witness.leader.wait()
                await witness.batch.wait()
            instants_ns = (witness.leads_at_ns, witness.serves_at_ns)
            leads_ms, serves_ms = ((at_ns - killed_at_ns) / 1e6 for at_ns in instants_ns)
            print(f"{leader} killed: the next leads after {leads_ms:.0f} ms, {serves_ms:.0f} ms")
            took_ms.append((leads_ms, serves_ms))
            _start(cluster, leader)
            leader = next(name for name in names if witness.instance.startswith(f"{name}-"))
    return took_ms


def _start(cluster: Cluster, name: str) -> None:
    cluster.start(name, ["-m", "services.scheduler"], instance=name, batch_policy="eager")


async def _wait_ready(cluster: Cluster, names: Sequence[str]) -> None:
    """Until every scheduler leads or waits as a spare."""
    async with asyncio.timeout(ANSWER_WITHIN_S):
        while True:
            status = await cluster.bus.gather(SERVICE_STATUS, Empty(), timeout_s=0.1)
            if set(names) <= {one.instance for one in status if one.state == "ready"}:
                return


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]
