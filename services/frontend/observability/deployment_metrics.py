"""Collects metrics and status from all processes of the deployment."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from services.frontend.core.observability.deployment_view import WANTED
from shared.bus import Bus
from shared.runtime.exposition import Sample, merged, own_metrics, samples_of, unpack_text
from shared.wire.messages import MetricsWanted, ServiceMetrics
from shared.wire.subjects import SERVICE_METRICS, Subject

Req = TypeVar("Req")
Rep = TypeVar("Rep")
Made = TypeVar("Made")

PATIENCE_S = 1.0
ROUNDS_MISSED_MAX = 3


class Poll(Generic[Req, Rep]):
    """A question to all processes that answer it. It waits for those that answered lately, for a
    second at most, and for no others.
    """

    def __init__(
        self, bus: Bus, subject: Subject[Req, Rep], question: Req, name_of: Callable[[Rep], str]
    ) -> None:
        self._bus = bus
        self._subject = subject
        self._question = question
        self._name_of = name_of
        self._missed: dict[str, int] = {}  # rounds since each last answered

    async def take(self) -> dict[str, Rep]:
        """Answers by process."""

        def is_enough(replies: list[Rep]) -> bool:
            return bool(self._missed) and self._missed.keys() <= set(map(self._name_of, replies))

        replies = await self._bus.gather(
            self._subject, self._question, timeout_s=PATIENCE_S, until=is_enough
        )
        answers = {self._name_of(reply): reply for reply in replies}
        missed = {name: num + 1 for name, num in self._missed.items() if num < ROUNDS_MISSED_MAX}
        self._missed = missed | dict.fromkeys(answers, 0)
        return answers


class Shared(Generic[Made]):
    """Shares one run of some work among all callers that wait for its result."""

    def __init__(self, make: Callable[[], Awaitable[Made]]) -> None:
        self._make = make
        self._running: asyncio.Future[Made] | None = None

    async def get(self) -> Made:
        """The result of the current run, or of a new one."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._make())
        return await asyncio.shield(self._running)


class DeploymentMetrics:
    """Metrics of all processes as one text.

    Args:
        process: name of this one.
    """

    def __init__(self, bus: Bus, process: str) -> None:
        self._plain = _Round(bus, process, as_openmetrics=False)
        self._openmetrics = _Round(bus, process, as_openmetrics=True)

    async def text(self, *, as_openmetrics: bool = False) -> str:
        """Each sample with `service` and `process`."""
        which = self._openmetrics if as_openmetrics else self._plain
        return await which.shared.get()

    async def samples(self) -> list[Sample]:
        """Those that `core.observability.deployment_view` reads."""
        return await asyncio.to_thread(samples_of, await self.text(), WANTED)


class _Round:
    """Metrics of all processes in one of the formats."""

    def __init__(self, bus: Bus, process: str, *, as_openmetrics: bool) -> None:
        self._process = process
        self._as_openmetrics = as_openmetrics
        wanted = MetricsWanted(as_openmetrics=as_openmetrics)
        self._poll = Poll(bus, SERVICE_METRICS, wanted, lambda reply: reply.process)
        self.shared = Shared(self._ask)

    async def _ask(self) -> str:
        answers = await self._poll.take()
        return await asyncio.to_thread(self._together, answers)

    def _together(self, answers: dict[str, ServiceMetrics]) -> str:
        texts = []
        if self._process not in answers:  # NATS is away: its own are there all the same
            own = own_metrics(as_openmetrics=self._as_openmetrics)
            texts.append(({"service": "frontend", "process": self._process}, own))
        for name, reply in sorted(answers.items()):
            with suppress(ValueError):  # of another release
                labels = {"service": reply.service, "process": name}
                texts.append((labels, unpack_text(reply.packed)))
        return merged(texts, as_openmetrics=self._as_openmetrics)
