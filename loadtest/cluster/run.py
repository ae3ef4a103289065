"""A run of a simulated cluster, from options to what it did."""

import time

from loadtest.cluster.cluster import Cluster
from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.result import ClusterResult
from loadtest.workloads.registry import WORKLOADS
from loadtest.workloads.script import Script


def run_cluster(options: ClusterOptions, scripts: list[Script] | None = None) -> ClusterResult:
    """Simulate; `scripts` in place of those of the workload that `options` name.

    Raises:
        NotFound: the workload's files are not here.
        AssertionError: an invariant does not hold.
    """
    started_s = time.perf_counter()
    if scripts is None:
        scripts = WORKLOADS[options.trace](options.users, options.duration_ns, options.seed)
    cluster = Cluster(options)
    cluster.run(scripts)
    took_s = time.perf_counter() - started_s
    return cluster.stats.result(options.duration_ns, cluster.pages_by_tier(), took_s)
