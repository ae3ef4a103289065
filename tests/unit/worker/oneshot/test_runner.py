"""The shell of one-shot models, over a bus that keeps what it is told."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from services.worker.device.thread import DeviceThreads
from services.worker.oneshot.effects import BatchLimits
from services.worker.oneshot.model import (
    BatchStoppedError,
    DeviceLostError,
    LoadableOneshot,
    OneshotModel,
    Values,
    pack_values,
)
from services.worker.oneshot.runner import OneshotRunner
from shared.ids import BatchId, FrontendId, JobId, ModelId, WorkerId
from shared.runtime.clock import SystemClock
from shared.wire.messages import (
    BatchDone,
    BatchStart,
    InputPull,
    InputReply,
    JobInput,
    JobRef,
    JobResult,
    JobResults,
    OneshotCard,
    OneshotHold,
    OneshotVariant,
)
from shared.wire.subjects import BATCH_START, ONESHOT_HOLD

JOBS = [JobRef(job_id=JobId(name), frontend_id=FrontendId("f")) for name in ("a", "b", "c")]
START = BatchStart(
    batch_id=BatchId("batch"),
    leadership="o",
    fence=1,
    fingerprint="p",
    model_id=ModelId("m"),
    variant=0,
    start_in_ns=0,
    jobs=JOBS,
)


class StubBus:
    """Answers pulls at once."""

    def __init__(self) -> None:
        self.handlers: dict[Any, Callable[[Any], None]] = {}
        self.results: list[JobResult] = []
        self.done: asyncio.Queue[BatchDone] = asyncio.Queue()

    async def subscribe(self, subject: Any, handler: Callable[[Any], None], *_: object) -> None:
        self.handlers[subject] = handler

    async def request(self, _: object, pull: InputPull, *__: object, **___: object) -> InputReply:
        return InputReply(inputs=[JobInput(job_id=job_id) for job_id in pull.job_ids])

    async def publish(self, _: object, message: object, *__: object) -> None:
        if isinstance(message, JobResults):
            self.results += message.results
        if isinstance(message, BatchDone):
            self.done.put_nowait(message)


class StubModel:
    """Gives the values it was made with; waits for `stop` first if there are none."""

    def __init__(self, values: Values | None) -> None:
        self.card = OneshotCard(
            model_id=START.model_id,
            task="embed",
            modality="text",
            source="s",
            fingerprint="p",
            slo_ms=50.0,
            variants=[OneshotVariant(variant=0, batch_ns=[1, 1, 1])],
            num_values=2,
            created=0,
        )
        self.started, self.was_stopped, self.is_closed = threading.Event(), False, False
        self._values = values

    def decode(self, job: JobInput, variant: int) -> str:
        return job.job_id

    def run(self, inputs: Sequence[Any], variant: int, stop: threading.Event) -> Values:
        if self._values is not None:
            return self._values
        self.started.set()
        self.was_stopped = stop.wait(2)
        raise BatchStoppedError

    def close(self) -> None:
        self.is_closed = True


def drive(
    bus: StubBus,
    model: StubModel,
    until: Callable[[], Awaitable[Any]],
    limits: BatchLimits | None = None,
) -> Any:
    """Start one batch; close the runner when `until` is over, and return what that gave."""

    async def scenario() -> Any:
        with ThreadPoolExecutor(1) as thread:
            runner = OneshotRunner(
                bus,  # type: ignore[arg-type]
                SystemClock(),
                WorkerId("w"),
                {START.model_id: model},
                limits or BatchLimits(),
                DeviceThreads(thread),
                lambda: None,
            )
            await runner.listen()
            running = asyncio.create_task(runner.run())
            bus.handlers[BATCH_START](START)
            result = await until()
            running.cancel()
            runner.close()
            return result

    return asyncio.run(scenario())


def test_a_row_that_is_not_finite_fails_alone() -> None:
    values = np.array([[1, 2], [3, np.nan], [np.inf, 4]], np.float32)
    bus = StubBus()
    done = drive(bus, StubModel(values), bus.done.get)
    good, *bad = sorted(bus.results, key=lambda result: result.job_id)
    assert (good.values, good.code) == (pack_values(values[:1])[0], "")
    assert [(one.job_id, one.values, one.code) for one in bad] == [
        ("b", "", "model_error"),
        ("c", "", "model_error"),
    ]
    assert "not finite" in bad[0].message
    assert (done.size, done.is_refused) == (3, False)


def test_closing_stops_the_running_batch() -> None:
    model = StubModel(None)
    assert drive(StubBus(), model, lambda: asyncio.to_thread(model.started.wait, 2))
    assert model.was_stopped


def test_a_batch_that_does_not_end_ends_the_process() -> None:
    model = StubModel(None)

    async def broken() -> BaseException:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[BaseException] = loop.create_future()
        loop.set_exception_handler(lambda _, context: found.set_result(context["exception"]))
        return await found

    limits = BatchLimits(run_min_ns=10_000_000, run_factor=20)
    error = drive(StubBus(), model, broken, limits)
    assert isinstance(error, DeviceLostError) and "a batch of 3 has run" in str(error)
    assert model.started.is_set()


def test_models_are_loaded_and_closed_on_order() -> None:
    good, card = StubModel(np.ones((3, 2), np.float32)), StubModel(None).card
    bad = replace(card, model_id=ModelId("bad"))

    def fail() -> OneshotModel:
        raise OSError("no such file")

    async def scenario() -> None:
        bus, changed = StubBus(), asyncio.Event()
        models = {
            START.model_id: LoadableOneshot(card, lambda: good),
            bad.model_id: LoadableOneshot(bad, fail),
        }
        with ThreadPoolExecutor(1) as thread:
            runner = OneshotRunner(
                bus,  # type: ignore[arg-type]
                SystemClock(),
                WorkerId("w"),
                models,
                BatchLimits(models_bytes_max=100),
                DeviceThreads(thread),
                changed.set,
            )

            async def order(*names: ModelId, num_changes: int) -> dict[str, bool]:
                bus.handlers[ONESHOT_HOLD](OneshotHold(models=list(names), fence=1, seq=order_of()))
                for _ in range(num_changes):
                    await changed.wait()
                    changed.clear()
                return {str(each.model_id): each.is_loaded for each in runner.cards()}

            order_of = count(1).__next__
            await runner.listen()
            running = asyncio.create_task(runner.run())
            assert not any(each.is_loaded for each in runner.cards())
            held = await order(bad.model_id, START.model_id, num_changes=2)
            assert held == {"bad": False, "m": True}
            [lack] = runner.lacks()
            assert (lack.model_id, lack.reason) == ("bad", "OSError: no such file")
            bus.handlers[BATCH_START](START)
            assert (await bus.done.get()).size == 3
            assert await order(num_changes=1) == {"bad": False, "m": False}
            assert good.is_closed
            running.cancel()
            runner.close()

    asyncio.run(asyncio.wait_for(scenario(), 10))
