"""How long work on a device takes."""

import statistics
import time
from collections.abc import Callable

import torch

WARM_UPS = 2


def median_s(device: torch.device, work: Callable[[], object], rounds: int) -> float:
    """Median of some rounds, each begun and ended with the device at rest."""
    for _ in range(WARM_UPS):
        work()
    return statistics.median(_once_s(device, work) for _ in range(rounds))


def per_call_s(
    device: torch.device,
    work: Callable[[int], object],
    rounds: int,
    calls: int = 20,
    *,
    is_recorded: bool = False,
) -> float:
    """Of one of many calls that are launched one after the other; each is given its number, so that
    it may take other inputs than the last one, which the caches hold.

    Args:
        is_recorded: launch them all by one call, where the device can: calls that are shorter than
            the host takes to launch them.
    """
    for number in range(WARM_UPS):
        work(number)

    def many() -> None:
        for number in range(calls):
            work(number)

    launch = _recorded(many) if is_recorded and device.type == "cuda" else many
    launch()
    return statistics.median(_once_s(device, launch) for _ in range(rounds)) / calls


def _recorded(work: Callable[[], object]) -> Callable[[], object]:
    rest(torch.device("cuda"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def rest(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _once_s(device: torch.device, work: Callable[[], object]) -> float:
    rest(device)
    started = time.perf_counter()
    work()
    rest(device)
    return time.perf_counter() - started
