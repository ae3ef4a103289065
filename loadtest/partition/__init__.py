"""Solvers of the partitioning problem that the scheduler does not use: appendix A by HiGHS, and
at random.
"""

from loadtest.partition.random_solver import random_partition
from loadtest.partition.solve import partition
from services.scheduler.core.partition.errors import NoPartition
from services.scheduler.core.partition.problem import (
    Partition,
    PartitionModel,
)

__all__ = [
    "NoPartition",
    "Partition",
    "PartitionModel",
    "partition",
    "random_partition",
]
