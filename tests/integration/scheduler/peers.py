"""A worker that holds what it is sent, for tests of those around it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from shared.bus import Bus
from shared.ids import HostId, ModelId, WorkerId, new_id
from shared.wire.messages import (
    Empty,
    ModelCard,
    Prefetch,
    TurnCancel,
    TurnEnd,
    TurnRef,
    TurnsEnded,
    TurnsStart,
    TurnStart,
    WorkerReport,
)
from shared.wire.subjects import (
    TURNS_ENDED,
    WORKER_CANCEL,
    WORKER_PING,
    WORKER_PREFETCH,
    WORKER_REPORT,
    WORKER_START,
)
from tests.integration.harness import sever

REPORT_EVERY_S = 0.05


class FakeWorker:
    """Reports, answers pings, keeps every turn until told to end or cancel it."""

    def __init__(self, bus: Bus, worker_id: str) -> None:
        self.bus = bus
        self.worker_id = WorkerId(worker_id)
        self.incarnation = new_id("incarnation")
        self.started: list[TurnStart] = []
        self.cancelled: list[TurnCancel] = []
        self.prefetched: list[Prefetch] = []
        self.held: dict[str, TurnStart] = {}
        self.seq = 0
        self._reporting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.bus.subscribe(WORKER_START, self._on_start, self.worker_id)
        await self.bus.subscribe(WORKER_CANCEL, self._on_cancel, self.worker_id)
        await self.bus.subscribe(WORKER_PREFETCH, self.prefetched.append, self.worker_id)
        await self.bus.serve(WORKER_PING, self._pong, self.worker_id)
        await self.bus.flush()
        self._reporting = asyncio.create_task(self._report())

    async def stop(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)

    async def die(self) -> None:
        """As if killed: the connection goes, and with it every subscription."""
        await self.stop()
        await sever(self.bus)

    async def end(self, turn_id: str) -> None:
        start = self.held.pop(turn_id)
        end = TurnEnd(turn_id=start.turn_id, attempt=start.attempt, reason="stop")
        await self.bus.publish(TURNS_ENDED, TurnsEnded(turns=[end]))

    def _on_start(self, message: TurnsStart) -> None:
        for start in message.turns:
            self.started.append(start)
            self.held[start.turn_id] = start

    def _on_cancel(self, cancel: TurnCancel) -> None:
        self.cancelled.append(cancel)
        self.held.pop(cancel.turn_id, None)

    async def _pong(self, _: Empty) -> Empty:
        return Empty()

    async def _report(self) -> None:
        while True:
            self.seq += 1
            turns = [TurnRef(turn_id=s.turn_id, attempt=s.attempt) for s in self.held.values()]
            report = ready_report(self.worker_id, self.incarnation, self.seq, turns)
            await self.bus.publish(WORKER_REPORT, report)
            await asyncio.sleep(REPORT_EVERY_S)


def ready_report(
    worker_id: str,
    incarnation: str = "1",
    seq: int = 1,
    turns: Sequence[TurnRef] = (),
    interval_s: float = REPORT_EVERY_S,
) -> WorkerReport:
    """Of a worker that serves the model ``m``."""
    card = ModelCard(
        model_id=ModelId("m"),
        source="m",
        fingerprint="f",
        max_model_len=4096,
    )
    return WorkerReport(
        worker_id=WorkerId(worker_id),
        incarnation=incarnation,
        seq=seq,
        host_id=HostId("h"),
        state="ready",
        models=[card],
        turns=list(turns),
        interval_ns=int(interval_s * 1e9),
    )


@asynccontextmanager
async def fake_worker(url: str, worker_id: str) -> AsyncIterator[FakeWorker]:
    """A started fake worker on a connection of its own."""
    worker = FakeWorker(await Bus.connect(url, worker_id), worker_id)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()
        await worker.bus.drain()
