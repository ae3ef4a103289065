"""Shared threads and slow peers, and how much of them one tenant has at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


class Workers:
    """Threads for one kind of work, which tenants use in turn.

    Args:
        what: the work is called in errors, plural.
        is_shared: several tenants use them; then one has half of them at most.

    Attributes:
        num: that one tenant has at most.
    """

    def __init__(self, what: str, name: str, *, is_shared: bool, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.num = part_of(threads, is_shared=is_shared)
        self._gate = _gate(what, threads, WAITING_MAX, is_shared=is_shared)

    async def run(self, work: Callable[[], Made], wait_s: float = WAIT_S) -> Made:
        """What `work` makes in a thread. If this is cancelled, it is waited for once it has begun.

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

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class Gates:
    """What requests of all tenants share, beside the room for what they send.

    Attributes:
        images: decodes and resizes them, if they are not large.
        large_images: the same for those.
        inputs: makes tokens of texts for one-shot models.
        answers: writes long lists of log-probabilities.
        additions: of adapters, which a kvstore copies and checks.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self.images = Workers("images", "image", is_shared=is_shared)
        self.large_images = Workers(
            "large images", "large-image", is_shared=is_shared, threads=LARGE_THREADS
        )
        self.inputs = Workers("long texts", "inputs", is_shared=is_shared)
        self.answers = Workers("long answers", "answer", is_shared=is_shared)
        self.additions = _gate(
            "additions of adapters", ADDITIONS_MAX, ADDITIONS_WAITING_MAX, is_shared=is_shared
        )

    def close(self) -> None:
        """Begin nothing more."""
        for workers in (self.images, self.large_images, self.inputs, self.answers):
            workers.close()


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
