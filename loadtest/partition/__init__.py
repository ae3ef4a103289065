"""Which models go to which sub-cluster (deferred batch scheduling, section 4.4 and appendix A)."""

from loadtest.partition.errors import NoPartition
from loadtest.partition.problem import (
    Partition,
    PartitionModel,
)
from loadtest.partition.random_solver import random_partition
from loadtest.partition.solve import partition

__all__ = [
    "NoPartition",
    "Partition",
    "PartitionModel",
    "partition",
    "random_partition",
]
