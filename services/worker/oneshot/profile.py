"""How long a model's batches take, measured when it is loaded, kept for the next start.

Source: deferred batch scheduling, section 5: "all models are profiled with all different batch
sizes to obtain actual execution latency".
"""

import json
import logging
import tempfile
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from statistics import median

import numpy as np
from pydantic import TypeAdapter, ValidationError

from shared.wire.messages import OneshotVariant

log = logging.getLogger(__name__)

VERSION = 1  # of what is measured; raise it to measure again
RUNS = 3
SHORT_RUNS = 7
SHORT_NS = 20_000_000


def measure(
    run: Callable[[int], None],
    batch_max: int,
    budget_ns: int,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> dict[int, int]:
    """Median time of batches of as many sizes as fit into the budget: 1 and 2 always, then 4, 8,
    16... and the largest, then 3, 6, 12..., then the rest.

    Args:
        run: runs one batch of this size.
        batch_max: largest size.

    Returns:
        size to ns.
    """
    end_at_ns = now_ns() + budget_ns
    measured: dict[int, int] = {}
    for size in _order(batch_max):
        if len(measured) >= 2:
            expected_ns = fill(measured, size)[-1]
            if now_ns() + expected_ns * (RUNS + 1) > end_at_ns:
                continue
        run(size)  # buffers and kernels of a new size are made in its first run
        times = [_time(run, size, now_ns)]
        while len(times) < (SHORT_RUNS if times[0] < SHORT_NS else RUNS):
            if now_ns() + times[0] > end_at_ns:
                break
            times.append(_time(run, size, now_ns))
        measured[size] = round(median(times))
    return measured


def fill(measured: dict[int, int], batch_max: int) -> list[int]:
    """Times of all sizes from 1: between measured ones on the line between them, beyond the last by
    the slope of the line fitted through all; never falling.

    >>> fill({1: 10, 3: 30}, 4)
    [10, 20, 30, 40]
    """
    sizes = sorted(measured)
    times = [measured[size] for size in sizes]
    slope = max(float(np.polyfit(sizes, times, 1)[0]), 0.0) if len(sizes) > 1 else float(times[0])
    filled = np.interp(np.arange(1, batch_max + 1), sizes, times)
    for size in range(sizes[-1] + 1, batch_max + 1):
        filled[size - 1] = times[-1] + slope * (size - sizes[-1])
    rising = np.maximum.accumulate(np.rint(filled).astype(np.int64))
    return [max(int(ns), 1) for ns in rising]


def measure_variants(
    run: Callable[[int, int], None], variants: list[int], batch_max: int, budget_s: float, name: str
) -> list[OneshotVariant]:
    """Profile every variant, the longest with the largest share of the budget.

    Args:
        run: runs one batch, given variant and size.
        name: of the model, for the log.
    """
    end_at_ns = time.monotonic_ns() + int(budget_s * 1e9)
    run(variants[-1], 1)  # threads, kernels and pools are made in a process's first run
    profiles: list[OneshotVariant] = []
    for index, variant in enumerate(variants):
        weights = [max(v, 1) for v in variants[index:]]
        left_ns = max(end_at_ns - time.monotonic_ns(), 0)
        budget_ns = int(left_ns * weights[0] / sum(weights))
        measured = measure(lambda size, v=variant: run(v, size), batch_max, budget_ns)  # type: ignore[misc]
        profiles.append(OneshotVariant(variant=variant, batch_ns=fill(measured, batch_max)))
        log.info(
            "batch sizes measured, the rest interpolated",
            extra={
                "model": name,
                "variant": variant,
                "measured": sorted(measured),
                "batch_max": batch_max,
                "first_ms": profiles[-1].batch_ns[0] / 1e6,
                "last_ms": profiles[-1].batch_ns[-1] / 1e6,
            },
        )
    return profiles


class ProfileCache:
    """Profiles on disk, a file each; delete the folder to have them measured again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: dict[str, object]) -> list[OneshotVariant] | None:
        """The profile measured under exactly this key, if one is kept."""
        try:
            kept = json.loads(self._path(key).read_bytes())
            return TypeAdapter(list[OneshotVariant]).validate_python(kept["variants"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            log.warning("a kept profile is not readable", extra={"error": str(error)})
            return None

    def put(self, key: dict[str, object], variants: list[OneshotVariant]) -> None:
        """Keep a profile. A disk that takes none costs the next start time, nothing else."""
        content = {
            "key": key,
            "variants": [{"variant": v.variant, "batch_ns": v.batch_ns} for v in variants],
        }
        path = self._path(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as beside:
                new = Path(beside) / path.name
                new.write_text(json.dumps(content))
                new.rename(path)
        except OSError as error:
            log.warning("profile not kept", extra={"path": str(path), "error": str(error)})

    def _path(self, key: dict[str, object]) -> Path:
        text = json.dumps({**key, "version": VERSION}, sort_keys=True)
        return self._folder / f"{blake2b(text.encode(), digest_size=12).hexdigest()}.json"


def _time(run: Callable[[int], None], size: int, now_ns: Callable[[], int]) -> int:
    started_ns = now_ns()
    run(size)
    return now_ns() - started_ns


def _order(batch_max: int) -> list[int]:
    """Every size once, those that tell most first."""
    doubling = [1 << n for n in range(batch_max.bit_length())]
    first = [1, min(2, batch_max), *doubling, batch_max]
    between = [3 * size // 2 for size in doubling if size > 1]
    every = range(1, batch_max + 1)
    return [size for size in dict.fromkeys([*first, *between, *every]) if size <= batch_max]
