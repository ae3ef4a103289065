"""The depth that is found on model disks and links, with and without noise."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from services.kvstore.core.loading.concurrency import WINDOW_NS, Concurrency

LEVELS = (1, 2, 4, 8, 16, 32, 64)
BATCH_BYTES = 8 << 20
GB = 1e9
Rate = Callable[[int], float]  # bytes a second at so many reads at a time


def disk(read_bytes: int, latency_s: float, bytes_per_s: float, decline: float = 0.0) -> Rate:
    """Gives one read after `latency_s`, and so much at most; too many at a time cost something."""
    return lambda depth: min(depth * read_bytes / latency_s, bytes_per_s) * (1 - decline * depth)


def run(
    found: Concurrency, rate: Rate, num: int, seed: int, noise: float, begin: float = 1.0
) -> Counter[int]:
    """So many batches, of several that wait, of which one takes `begin` times as long when there
    are more at a time than before; for how many ns it was at which level.
    """
    rng = random.Random(seed)
    at: Counter[int] = Counter()
    before = found.level
    for _ in range(num):
        level = found.level
        took_ns = int(BATCH_BYTES / rate(level) * 1e9 * max(rng.gauss(1.0, noise), 0.2))
        took_ns = int(took_ns * begin) if level > before else took_ns
        before = level
        found.on_done(BATCH_BYTES, took_ns)
        at[level] += took_ns
    return at


def least(rate: Rate) -> int:
    """The least depth that gives 95% of the rate."""
    best = max(map(rate, LEVELS))
    return next(level for level in LEVELS if rate(level) >= 0.95 * best)


DISKS = {
    "NVMe, 64 KiB": disk(65536, 100e-6, 6.8 * GB),
    "NVMe, 256 KiB": disk(262144, 120e-6, 6.8 * GB),
    "slow flash": disk(65536, 100e-6, 1.0 * GB),
    "network disk": disk(262144, 4e-3, 1.2 * GB, decline=0.001),
    "spindle": disk(262144, 8e-3, 0.033 * GB),
    "deeper is worse": disk(65536, 100e-6, 3.0 * GB, decline=0.01),
    "never enough": disk(65536, 10e-3, 100 * GB),
}


@pytest.mark.parametrize("first", [1, 8, 64])
@pytest.mark.parametrize("name", DISKS)
def test_it_finds_the_least_depth_that_gives_the_rate(name: str, first: int) -> None:
    rate, found = DISKS[name], Concurrency(LEVELS, first)
    run(found, rate, 2000, 1, noise=0.0)
    at = run(found, rate, 3000, 2, noise=0.0)
    assert at.most_common(1)[0][0] == least(rate)
    given = sum(rate(level) * ns for level, ns in at.items()) / at.total()
    assert given >= 0.95 * max(map(rate, LEVELS))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", DISKS)
def test_noise_neither_costs_the_rate_nor_makes_the_queue_deep(name: str, seed: int) -> None:
    rate, found = DISKS[name], Concurrency(LEVELS, 8)
    run(found, rate, 4000, seed, noise=0.2)
    at = run(found, rate, 10_000, seed + 100, noise=0.2)
    given = sum(rate(level) * ns for level, ns in at.items()) / at.total()
    assert given >= 0.9 * max(map(rate, LEVELS))
    assert sum(ns for level, ns in at.items() if level <= 2 * least(rate)) >= 0.6 * at.total()


def test_a_slow_beginning_is_not_taken_for_the_rate() -> None:
    """Of a connection that has just been made."""
    rate, found = disk(1 << 20, 1e-3, 8 * GB), Concurrency((1, 2, 4, 8), 1)
    run(found, rate, 2000, 1, noise=0.0, begin=10.0)
    at = run(found, rate, 2000, 2, noise=0.0, begin=10.0)
    assert at.most_common(1)[0][0] == 8


def test_it_follows_a_disk_that_changes() -> None:
    found = Concurrency(LEVELS, 1)
    for name in ("slow flash", "NVMe, 64 KiB", "slow flash"):
        run(found, DISKS[name], 20_000, 1, noise=0.05)
        at = run(found, DISKS[name], 10_000, 2, noise=0.05)
        assert at.most_common(1)[0][0] == least(DISKS[name])


def test_what_is_refused_is_not_tried_again_soon() -> None:
    """A peer that takes two connections and no more."""
    found = Concurrency((1, 2, 4, 8), 1)
    num_refused, at = 0, Counter[int]()
    for _ in range(4000):
        if found.level > 2:
            num_refused += 1
            found.on_refused()
        at[found.level] += 1
        found.on_done(found.level, WINDOW_NS)
    assert at.most_common(1)[0][0] == 2 and 2 <= num_refused <= 4


def test_what_is_not_under_load_is_not_judged() -> None:
    found = Concurrency(LEVELS, 8)
    for _ in range(1000):
        found.on_done(BATCH_BYTES, 0)
    assert found.level == 8
