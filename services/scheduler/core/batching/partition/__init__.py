"""Which models go to which sub-cluster (deferred batch scheduling, section 4.4 and appendix A)."""

from services.scheduler.core.batching.partition.errors import NoPartition
from services.scheduler.core.batching.partition.problem import (
    Partition,
    PartitionModel,
    imbalance,
)
from services.scheduler.core.batching.partition.random_solver import random_partition
from services.scheduler.core.batching.partition.solve import partition

__all__ = [
    "NoPartition",
    "Partition",
    "PartitionModel",
    "imbalance",
    "partition",
    "random_partition",
]
