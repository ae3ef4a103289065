"""Threads and slow peers that tenants share, and how many of them one tenant may use at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from services.frontend.observability.access_log import served_tenant
from shared.fair_slots import FairGate, FairLimits

THREADS = 4  # of a kind
LARGE_THREADS = 2  # each may take 500 MB for the largest images that are taken by default
WAITING_MAX = 8192  # for a thread of a kind
ADDITIONS_MAX = 8  # of adapters under way at once
ADDITIONS_WAITING_MAX = 64
WAIT_S = 60.0  # where no deadline says how long

Made = TypeVar("Made")

OpenThreads = Callable[[int, str], Executor]
"""Makes so many threads, with names that begin so."""


class Workers:
    """Threads for one kind of work, which tenants use in turn.

    Args:
        threads: of which there are `num_threads`.
        what: the work is called in errors, plural.
        is_shared: several tenants use them; then one has half of them at most.

    Attributes:
        num: that one tenant has at most.
    """

    def __init__(self, threads: Executor, num_threads: int, what: str, *, is_shared: bool) -> None:
        self._threads = threads
        self.num = part_of(num_threads, is_shared=is_shared)
        self._gate = _gate(what, num_threads, WAITING_MAX, is_shared=is_shared)

    async def run(self, work: Callable[[], Made], wait_s: float = WAIT_S) -> Made:
        """Run `work` in a thread and return its result. If this is cancelled, work that has begun
        is waited for.

        Args:
            wait_s: how long it waits for a thread.

        Raises:
            TenantQuota, Overloaded: there is no thread for it.
        """
        async with self._gate.slot(served_tenant(), wait_s):
            running = self._threads.submit(work)
            waiting = asyncio.wrap_future(running)
            try:
                return await asyncio.shield(waiting)
            except asyncio.CancelledError:
                if not running.cancel():
                    await asyncio.wait({waiting})
                raise


class Gates:
    """What requests of all tenants share, beside room for inputs.

    Attributes:
        images: decodes and resizes them, if they are not large.
        large_images: the same for those.
        inputs: makes tokens of texts for one-shot models.
        answers: writes long lists of log-probabilities.
        additions: of adapters, which a kvstore copies and checks.
    """

    def __init__(self, open_threads: OpenThreads, *, is_shared: bool) -> None:
        def workers(what: str, name: str, num: int = THREADS) -> Workers:
            return Workers(open_threads(num, name), num, what, is_shared=is_shared)

        self.images = workers("images", "image")
        self.large_images = workers("large images", "large-image", LARGE_THREADS)
        self.inputs = workers("long texts", "inputs")
        self.answers = workers("long answers", "answer")
        self.additions = _gate(
            "additions of adapters", ADDITIONS_MAX, ADDITIONS_WAITING_MAX, is_shared=is_shared
        )


def _gate(what: str, num: int, waiting: int, *, is_shared: bool) -> FairGate:
    part, waiting_part = (part_of(each, is_shared=is_shared) for each in (num, waiting))
    limits = FairLimits(num=num, of_tenant=part, waiting=waiting, waiting_of_tenant=waiting_part)
    return FairGate(what, limits)


def part_of(num: int, *, is_shared: bool) -> int:
    """How many of `num` one tenant has at most: half, if there are others.

    >>> part_of(4, is_shared=True), part_of(1, is_shared=True), part_of(4, is_shared=False)
    (2, 1, 4)
    """
    return max(num // 2, 1) if is_shared else num
