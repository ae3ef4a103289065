"""One-shot jobs in the simulation: what a frontend and a worker each do for them."""

import struct
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from typing import Any
from zlib import crc32

from loadtest.sim.timeline import MS, Action
from loadtest.world.alarm import Alarm
from loadtest.world.process import Process
from services.worker.oneshot import effects as we
from services.worker.oneshot.core import BatchCore
from shared.effects import WakeAt
from shared.ids import BatchId, ModelId, WorkerId
from shared.wire.messages import (
    BatchStart,
    InputPull,
    JobResults,
    LeaderChanged,
    OneshotCard,
    OneshotVariant,
    unpack_ints,
)
from shared.wire.subjects import (
    BATCH_DONE,
    BATCH_START,
    INPUT_PULL,
    JOB_RESULTS,
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


def value_of(tokens: Sequence[int]) -> float:
    """What the model makes of an input: a number that float32 has."""
    return crc32(bytes(tokens)) % 4096 / 8


def packed_value_of(tokens: Sequence[int]) -> str:
    """The same as workers send it."""
    return b64encode(struct.pack("<f", value_of(tokens))).decode()


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
        values = [packed_value_of(unpack_ints(str(value))) for value in effect.values]
        ran = we.Ran(started_at_ns=self._worker.now_ns, run_ns=run_ns, values=values)
        self._worker.later(run_ns, partial(self._on_ran, effect.batch_id, ran))

    def _on_ran(self, batch_id: BatchId, ran: we.Ran) -> None:
        if self._running == batch_id:  # and was not stopped before
            self._running = None
            self._perform(self.core.on_ran(batch_id, ran, self._worker.now_ns))
