"""A run of a simulated cluster, from options to what it did."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.cluster.cluster import Cluster
from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.result import ClusterResult
from loadtest.workloads.registry import WORKLOADS
from loadtest.workloads.script import Script

# A cluster has millions of objects that stay, and next to no cycles among those that go.
COLLECT_EVERY = (50_000, 20, 100)


def run_cluster(options: ClusterOptions, scripts: list[Script] | None = None) -> ClusterResult:
    """Simulate; `scripts` in place of those of the workload that `options` name.

    Raises:
        NotFound: the workload's files are not here.
        AssertionError: an invariant does not hold.
    """
    started_s = time.perf_counter()
    if scripts is None:
        scripts = WORKLOADS[options.trace](options.users, options.lasts_ns, options.seed)
    with _seldom_collecting():
        cluster = Cluster(options)
        cluster.run(scripts)
    took_s = time.perf_counter() - started_s
    return cluster.stats.result(options.duration_ns, cluster.loaded_tokens(), took_s)


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
