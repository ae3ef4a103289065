"""A kvstore whose event loop is watched: ``python -m loadtest.bench.scale.watched``.

The service as it is, with one task beside it that wants to run every millisecond and writes down
when it could not, into the file that `BEATS_NAME` says.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.kvstore.config import KvstoreConfig
from services.kvstore.service import main
from shared.service import Runtime, run

BEATS_NAME = "BENCH_BEATS"  # variable with the path
BEAT_S = 0.001
TOLD_S = 0.001  # what is less is the loop's own timer


@dataclass(frozen=True, slots=True)
class Beat:
    """A time in which the loop did not come back.

    Attributes:
        at_s: its end, by the machine's monotonic clock.
        late_s: how long it was, beyond what was to be waited.
        busy_s: how long the loop's thread computed in it: the rest it waited for a processor, or
            for another thread.
    """

    at_s: float
    late_s: float
    busy_s: float


async def watch(path: Path) -> None:
    """Write down every beat that comes late, until cancelled."""
    with path.open("a", buffering=1) as file:
        while True:
            began_s, busy_s = time.monotonic(), time.thread_time()
            await asyncio.sleep(BEAT_S)
            now_s = time.monotonic()
            late_s = now_s - began_s - BEAT_S
            if late_s >= TOLD_S:
                file.write(f"{now_s:.6f} {late_s:.6f} {time.thread_time() - busy_s:.6f}\n")


def read_beats(path: Path) -> Iterator[Beat]:
    """What was written down."""
    for line in path.read_text().splitlines():
        at_s, late_s, busy_s = map(float, line.split())
        yield Beat(at_s, late_s, busy_s)


async def watched_main(runtime: Runtime, config: KvstoreConfig) -> None:
    """The service, watched from before it opens its disk."""
    runtime.spawn(watch(Path(os.environ[BEATS_NAME])), "beats")
    await asyncio.sleep(0)
    await main(runtime, config)


if __name__ == "__main__":
    run("kvstore", KvstoreConfig, watched_main)
