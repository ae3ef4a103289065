"""How long a model's batches take, measured when it is loaded, kept for the next start.

Source: deferred batch scheduling, section 5: "all models are profiled with all different batch
sizes to obtain actual execution latency".
"""

import json
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
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
NOISY_RUNS = 15  # of a batch whose times differ
NOISE_MAX = 0.2  # by which the median of a batch's times may be above the shortest


def measure(
    run: Callable[[int], None],
    batch_max: int,
    budget_ns: int,
    now_ns: Callable[[], int] = time.monotonic_ns,
    on_noise: Callable[[float], None] = lambda _: None,
) -> dict[int, int]:
    """Median time of batches of as many sizes as fit into the budget: 1 and 2 always, then 4, 8,
    16... and the largest, then 3, 6, 12..., then the rest. While a batch's times differ by more
    than `NOISE_MAX` it is run again, up to `NOISY_RUNS` times.

    Args:
        run: runs one batch of this size.
        batch_max: largest size.
        on_noise: called for each size with `spread` of its times.

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
        num_runs = SHORT_RUNS if times[0] < SHORT_NS else RUNS
        while len(times) < num_runs or (len(times) < NOISY_RUNS and spread(times) > NOISE_MAX):
            if now_ns() + times[-1] > end_at_ns:
                break
            times.append(_time(run, size, now_ns))
        measured[size] = round(median(times))
        on_noise(spread(times))
    return measured


def spread(times: list[int]) -> float:
    """How far the median of times is above the shortest, as a share of it.

    >>> spread([10, 15, 30])
    0.5
    """
    return median(times) / max(min(times), 1) - 1


def ordered(profiles: list[OneshotVariant]) -> list[OneshotVariant]:
    """Profiles of rising variants in which no shorter input takes longer than a longer one: where
    that was measured, the machine had other work meanwhile.
    """
    result: list[OneshotVariant] = []
    for profile in reversed(profiles):
        longer = result[-1].batch_ns if result else profile.batch_ns
        result.append(replace(profile, batch_ns=list(map(min, profile.batch_ns, longer))))
    return result[::-1]


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
) -> tuple[list[OneshotVariant], bool]:
    """Profile every variant, the longest with the largest share of the budget.

    Args:
        run: runs one batch, given variant and size.
        name: of the model, for the log.

    Returns:
        The profiles, and whether times of most sizes differed little.
    """
    end_at_ns = time.monotonic_ns() + int(budget_s * 1e9)
    run(variants[-1], 1)  # threads, kernels and pools are made in a process's first run
    profiles: list[OneshotVariant] = []
    noise: list[float] = []
    for index, variant in enumerate(variants):
        weights = [max(v, 1) for v in variants[index:]]
        left_ns = max(end_at_ns - time.monotonic_ns(), 0)
        budget_ns = int(left_ns * weights[0] / sum(weights))
        measured = measure(
            lambda size, v=variant: run(v, size),  # type: ignore[misc]
            batch_max, budget_ns, on_noise=noise.append,
        )  # fmt: skip
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
    is_calm = median(noise) <= NOISE_MAX
    if not is_calm:
        log.warning(
            "batches took different times: the machine is busy; measured again at the next start",
            extra={"model": name, "noise": round(median(noise), 3)},
        )
    return ordered(profiles), is_calm


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
