"""Preparing the inputs of one request to a one-shot model, as long as its client waits.

The work is done in threads. They ask `Preparation` before each piece of it whether to go on; room
and errors are the event loop's business. Texts are in `texts.py`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from services.frontend.app import App
from services.frontend.config import FrontendConfig
from services.frontend.core.turns.job_events import Fail, NewJob
from services.frontend.models.images import ImageProcessor, Pixels, TooManyPixels, data_url_bytes
from services.frontend.models.registry import OneshotModel
from services.frontend.tenants.gates import Workers
from services.frontend.turns.hub import ClientGone
from services.frontend.turns.job_hub import JobError, PendingJobs, count
from shared.errors import InvalidRequest
from shared.fair_slots import Overloaded
from shared.ids import JobId
from shared.wire.messages import JobDropped, JobInput

LARGE_PIXELS = 4_000_000  # of an image; those with more are decoded two at a time
ENTRY_BYTES = 256  # of an input, beside its tokens or pixels

Made = TypeVar("Made")


@dataclass(slots=True)
class Context:
    """What an endpoint works with beside its body.

    Attributes:
        is_abandoned: the answer is not wanted any more; threads look at it.
    """

    app: App
    pending: PendingJobs
    header_slo_ms: float | None = None
    is_abandoned: bool = False

    def abandon(self) -> None:
        """The client hung up."""
        self.is_abandoned = True
        self.pending.abandon()


@dataclass(frozen=True, slots=True)
class Preparation:
    """Whether inputs that are being made ready are still of use.

    Attributes:
        num_jobs: of the request.
        latest_at_ns: the last instant at which they are.
    """

    context: Context
    num_jobs: int
    latest_at_ns: int

    def is_wanted(self) -> bool:
        """Whether to go on. Any thread may ask."""
        return not self.context.is_abandoned and self._left_ns() >= 0

    async def in_thread(self, workers: Workers, work: Callable[[], Made]) -> Made | None:
        """What `work` makes in a thread; None: there was none in time.

        Raises:
            TenantQuota, Overloaded: too much waits for one.
        """
        try:
            return await workers.run(work, self.left_s())
        except Overloaded:
            if self.is_wanted():
                raise
            return None

    def left_s(self) -> float:
        """Time until it is too late, seconds, never negative."""
        return max(self._left_ns(), 0) / 1e9

    def ended(self) -> ClientGone | JobError:
        """Why it is over; a missed target is counted."""
        if self.context.is_abandoned:
            return ClientGone()
        request_id = self.context.pending.request_id
        why = JobDropped(
            job_id=JobId(request_id),
            code="deadline_exceeded",
            message="its inputs were ready too late for the target",
        )
        count(Fail(request_id=request_id, num_jobs=self.num_jobs, outcome="unanswered", why=why))
        return JobError(why)

    def _left_ns(self) -> int:
        return self.latest_at_ns - self.context.app.clock.now_ns()


async def image_jobs(
    preparation: Preparation, model: OneshotModel, urls: Sequence[str]
) -> list[NewJob]:
    """Jobs of images.

    Raises:
        InvalidRequest: one cannot be read.
        NoCapacity: too many inputs are held already, or it is too late for these.
        ClientGone: the client hung up.
    """
    context, processor = preparation.context, model.processor
    config, gates = context.app.config, context.app.gates
    assert isinstance(processor, ImageProcessor)
    context.pending.take(len(urls), len(urls) * (processor.num_bytes + ENTRY_BYTES))
    variant = variant_of(model, 0)

    def decode(at: int, pixels_max: int) -> NewJob | None:
        if not preparation.is_wanted():
            return None
        pixels = _decoded(processor, config, urls[at], f"input[{at}]", pixels_max)
        made = JobInput(
            job_id=job_id_of(context, at),
            pixels=pixels.data,
            height=pixels.height,
            width=pixels.width,
        )
        return NewJob(variant=variant, input=made)

    made: list[NewJob | None] = [None] * len(urls)
    numbers = iter(range(len(urls)))

    async def decode_some() -> None:
        for at in numbers:
            try:
                work = partial(decode, at, LARGE_PIXELS)
                made[at] = await preparation.in_thread(gates.images, work)
            except TooManyPixels:
                work = partial(decode, at, config.image_pixels_max)
                made[at] = await preparation.in_thread(gates.large_images, work)

    num = min(gates.images.num, len(urls))
    await _all_or_first_error([decode_some() for _ in range(num)], preparation.left_s())
    jobs = [job for job in made if job is not None]
    if len(jobs) < len(urls):
        raise preparation.ended()
    return jobs


def _decoded(
    processor: ImageProcessor, config: FrontendConfig, url: str, name: str, pixels_max: int
) -> Pixels:
    """An image's pixels.

    Args:
        name: of the image in errors.

    Raises:
        TooManyPixels: more than `pixels_max`, and no more than are taken at all.
        InvalidRequest: it cannot be read.
    """
    try:
        data = data_url_bytes(url, config.image_bytes_max)
        return processor.decode(data, min(pixels_max, config.image_pixels_max))
    except InvalidRequest as error:
        if isinstance(error, TooManyPixels) and pixels_max < config.image_pixels_max:
            raise  # in another thread
        raise InvalidRequest(f"{name}: {error.message}", name) from None


def variant_of(model: OneshotModel, num_tokens: int) -> int:
    """The smallest variant that holds an input; 0 holds any."""
    sizes = [variant.variant for variant in model.card.variants]
    return min((size for size in sizes if size >= num_tokens), default=0)


def job_id_of(context: Context, at: int) -> JobId:
    """The id of a request's job."""
    return JobId(f"{context.pending.request_id}-{at}")


async def _all_or_first_error(
    works: Sequence[Coroutine[None, None, None]], timeout_s: float
) -> None:
    """Wait until all are done, or time is up. On an error too nothing more is begun, but what runs
    is waited for: its memory is accounted for until then.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    ended = [task for task in tasks if not task.cancelled()]
    for error in filter(None, [task.exception() for task in ended]):
        raise error
