"""Asks everybody in the house how they are: for metrics and for the dashboard."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from services.frontend.core.observability.deployment_view import WANTED
from shared.bus import Bus
from shared.exposition import Sample, merged, own_metrics, samples_of, unpack_text
from shared.messages import MetricsWanted, ServiceMetrics
from shared.subjects import SERVICE_METRICS, Subject

Req = TypeVar("Req")
Rep = TypeVar("Rep")
Made = TypeVar("Made")

PATIENCE_S = 1.0
ROUNDS_MISSED_MAX = 3


class Census(Generic[Req, Rep]):
    """A question to everybody who answers it. Who has answered it lately is waited for, for a
    second at most; once they all have, nobody else is.
    """

    def __init__(
        self,
        bus: Bus,
        subject: Subject[Req, Rep],
        question: Req,
        name_of: Callable[[Rep], str],
    ) -> None:
        self._bus = bus
        self._subject = subject
        self._question = question
        self._name_of = name_of
        self._missed: dict[str, int] = {}  # rounds since who was there last answered

    async def take(self) -> dict[str, Rep]:
        """Answers by the names of who gave them."""

        def is_enough(replies: list[Rep]) -> bool:
            return bool(self._missed) and self._missed.keys() <= set(map(self._name_of, replies))

        replies = await self._bus.gather(
            self._subject, self._question, timeout_s=PATIENCE_S, until=is_enough
        )
        told = {self._name_of(reply): reply for reply in replies}
        missed = {name: num + 1 for name, num in self._missed.items() if num < ROUNDS_MISSED_MAX}
        self._missed = missed | dict.fromkeys(told, 0)
        return told


class Shared(Generic[Made]):
    """Work that is done once for all who want its result at the same time."""

    def __init__(self, make: Callable[[], Awaitable[Made]]) -> None:
        self._make = make
        self._running: asyncio.Future[Made] | None = None

    async def get(self) -> Made:
        """The result of work that runs, or of what begins now."""
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(self._make())
        return await asyncio.shield(self._running)


class DeploymentMetrics:
    """Metrics of all processes as one text.

    Args:
        process: what this one is called.
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
        self._census = Census(bus, SERVICE_METRICS, wanted, lambda reply: reply.process)
        self.shared = Shared(self._ask)

    async def _ask(self) -> str:
        told = await self._census.take()
        return await asyncio.to_thread(self._together, told)

    def _together(self, told: dict[str, ServiceMetrics]) -> str:
        texts = []
        if self._process not in told:  # NATS passes nothing on: its own are there all the same
            own = own_metrics(as_openmetrics=self._as_openmetrics)
            texts.append(({"service": "frontend", "process": self._process}, own))
        for name, reply in sorted(told.items()):
            with suppress(ValueError):  # of another release
                labels = {"service": reply.service, "process": name}
                texts.append((labels, unpack_text(reply.packed)))
        return merged(texts, as_openmetrics=self._as_openmetrics)
