"""A frontend without HTTP: submits jobs when they arrive, whatever becomes of earlier ones.

``python -m loadtest.jobs.driver ORDER OUTCOME`` is a process of its own. The frontend's production
core decides when jobs are submitted, submitted again and given up, and its clock says whether an
answer was in time; what it wants done goes over the real bus.
"""

import asyncio
import gc
import sys
import time
from pathlib import Path

import numpy as np
import uvloop

from loadtest.jobs.order import ANSWERED, DROPPED, UNANSWERED, Model, Order, Outcome, read_order
from loadtest.jobs.processes import cpu_s
from services.frontend.core.turns.job_events import (
    AnswerPull,
    Cancel,
    Done,
    Effect,
    Fail,
    JobLimits,
    NewJob,
    NewRequest,
    Submit,
)
from services.frontend.core.turns.jobs import Jobs
from services.worker.oneshot.emulated import emulated_fingerprint
from shared.bus import Bus
from shared.effects import WakeAt
from shared.errors import PeerUnavailable
from shared.ids import FrontendId, JobId, ModelId, new_id, shard_of
from shared.messages import (
    InputPull,
    InputReply,
    JobInput,
    JobResults,
    JobsDropped,
    LeaderChanged,
    pack_ints,
)
from shared.subjects import (
    INPUT_PULL,
    JOB_RESULTS,
    JOBS_CANCEL,
    JOBS_DROPPED,
    JOBS_SUBMIT,
    LEADER_CHANGED,
)

TICK_NS = 1_000_000  # jobs that come within it go in one message, as in the frontend
INPUT_TOKENS = 32
LEAD_NS = 200_000_000
PROBE_SLO_NS = 2_000_000_000
PROBES_MAX = 60


class Driver:
    """Sends one order."""

    def __init__(self, order: Order, bus: Bus) -> None:
        self._order = order
        self._bus = bus
        self._frontend_id = FrontendId(new_id("fe"))
        # The tick is the gathering.
        self._jobs = Jobs(self._frontend_id, JobLimits(gather_ns=0))
        self._tokens = pack_ints(range(INPUT_TOKENS))
        self._outbox: list[Submit | Cancel] = []
        self._wake_at_ns: int | None = None
        num_jobs = len(order.arrivals)
        self._end = np.zeros(num_jobs, np.uint8)
        self._took_ns = np.zeros(num_jobs, np.int64)
        self._late_ns = np.zeros(num_jobs, np.int64)
        self._due_ns: list[int] = []
        self._answered_probes: set[str] = set()

    async def run(self) -> Outcome:
        """Probe until every model answers, then send everything and wait for all ends."""
        await self._listen()
        await self._probe()
        began_at_ns = time.monotonic_ns() + LEAD_NS
        self._due_ns = (self._order.arrivals.at_ns + began_at_ns).tolist()
        meter = asyncio.create_task(self._meter(began_at_ns))
        gc.collect()
        gc.freeze()
        await self._send_all()
        while len(self._jobs):
            await self._tick(None)
        return Outcome(
            began_at_ns=began_at_ns,
            end=self._end,
            took_ns=self._took_ns,
            late_ns=self._late_ns,
            cpu_s=await meter,
        )

    async def _listen(self) -> None:
        bus, me = self._bus, self._frontend_id
        await bus.serve(INPUT_PULL, self._on_pull, me)
        await bus.subscribe(JOB_RESULTS, self._on_results, me)
        await bus.subscribe(JOBS_DROPPED, self._on_dropped, me)
        await bus.subscribe(LEADER_CHANGED, self._on_leader)
        await bus.flush()

    async def _probe(self) -> None:
        for number in range(PROBES_MAX):
            silent = [m for m in self._order.models if m.name not in self._answered_probes]
            if not silent:
                return
            for model in silent:
                self._open(f"probe-{number}-{model.name}", model, time.monotonic_ns(), PROBE_SLO_NS)
            await self._tick(None)
            while len(self._jobs):
                await self._tick(None)
            await asyncio.sleep(0.1)
        raise PeerUnavailable(f"no answer for {silent[0].name}: see the scheduler's log")

    async def _send_all(self) -> None:
        due_ns, late_ns = self._due_ns, self._late_ns
        models = [self._order.models[index] for index in self._order.arrivals.model.tolist()]
        sent, num_jobs = 0, len(due_ns)
        while sent < num_jobs:
            await self._tick(due_ns[sent])
            now_ns = time.monotonic_ns()
            while sent < num_jobs and due_ns[sent] <= now_ns:
                late_ns[sent] = now_ns - due_ns[sent]
                self._open(str(sent), models[sent], due_ns[sent], models[sent].slo_ns)
                sent += 1
        await self._tick(due_ns[-1] if due_ns else None)

    def _open(self, request_id: str, model: Model, due_ns: int, slo_ns: int) -> None:
        job_id = JobId(f"{self._frontend_id}-{request_id}")
        model_id = ModelId(model.name)
        new = NewRequest(
            request_id=request_id,
            model_id=model_id,
            fingerprint=emulated_fingerprint(model.name),
            shard=shard_of(model_id, self._order.num_shards),
            jobs=[NewJob(variant=0, input=JobInput(job_id=job_id, tokens=self._tokens))],
            arrived_at_ns=due_ns,
            deadline_at_ns=due_ns + slo_ns,
            fastest_ns=model.fastest_ns,
        )
        self._perform(self._jobs.on_new(new, time.monotonic_ns()))

    async def _tick(self, until_ns: int | None) -> None:
        """Let the core do what is due, send it, and sleep for a tick, or longer if there is time
        until the next arrival and the core's alarm.
        """
        now_ns = time.monotonic_ns()
        if self._wake_at_ns is not None and self._wake_at_ns <= now_ns:
            self._wake_at_ns = None
            self._perform(self._jobs.on_wake(now_ns))
        outbox, self._outbox = self._outbox, []
        for effect in outbox:
            if isinstance(effect, Submit):
                await self._bus.publish(JOBS_SUBMIT, effect.message, str(effect.shard))
            else:
                await self._bus.publish(JOBS_CANCEL, effect.message, str(effect.shard))
        instants = [at_ns for at_ns in (until_ns, self._wake_at_ns) if at_ns is not None]
        left_ns = min(instants) - time.monotonic_ns() if instants else 0
        await asyncio.sleep(max(left_ns, TICK_NS) / 1e9)

    async def _meter(self, began_at_ns: int) -> dict[str, float]:
        """Processor seconds of every process from the counted time's begin to the last arrival."""
        pids = self._order.pids
        await _until(began_at_ns + self._order.counted_from_ns)
        before = {name: cpu_s(pid) for name, pid in pids.items()}
        own = time.process_time()
        await _until(began_at_ns + self._order.arrivals.end_ns)
        spent = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
        return {**spent, "driver": time.process_time() - own}

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Done() | Fail():
                    self._note(effect)
                case Submit() | Cancel():
                    self._outbox.append(effect)
                case WakeAt(at_ns):
                    self._wake_at_ns = at_ns

    def _note(self, event: Done | Fail) -> None:
        if event.request_id.startswith("probe-"):
            if isinstance(event, Done):
                self._answered_probes.add(event.request_id.split("-", 2)[2])
            return
        index = int(event.request_id)
        self._took_ns[index] = time.monotonic_ns() - self._due_ns[index]
        if isinstance(event, Done):
            self._end[index] = ANSWERED
        else:
            self._end[index] = DROPPED if event.outcome == "dropped" else UNANSWERED

    async def _on_pull(self, pull: InputPull) -> InputReply:
        (effect,) = self._jobs.on_pull(pull, time.monotonic_ns())
        assert isinstance(effect, AnswerPull)
        return effect.message

    def _on_results(self, message: JobResults) -> None:
        self._perform(self._jobs.on_results(message, time.monotonic_ns()))

    def _on_dropped(self, message: JobsDropped) -> None:
        self._perform(self._jobs.on_dropped(message))

    def _on_leader(self, _: LeaderChanged) -> None:
        self._perform(self._jobs.on_resubmit_all(time.monotonic_ns()))


async def _until(at_ns: int) -> None:
    await asyncio.sleep(max(at_ns - time.monotonic_ns(), 0) / 1e9)


async def _main(order_path: Path, outcome_path: Path) -> None:
    order = read_order(order_path)
    bus = await Bus.connect(order.nats_url, "driver")
    try:
        outcome = await Driver(order, bus).run()
    finally:
        await bus.drain()
    outcome.write(outcome_path)


if __name__ == "__main__":
    uvloop.run(_main(Path(sys.argv[1]), Path(sys.argv[2])))
