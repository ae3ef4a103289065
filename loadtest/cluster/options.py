"""What a simulated cluster is, and what it is asked to do."""

from dataclasses import dataclass
from typing import Literal

from loadtest.sim.timeline import SECOND
from shared.eviction import EvictionName

Without = Literal["cooperative", "layerwise", "balance", "prefix-cache"]
Packed = Literal["", "int8", "cachegen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Attributes:
    profile: of model and GPU (`shared.profiles`).
    gpus_per_host, dram_gb, disk_gb, link_gbit: of each host; the paper's testbed (section 4).
    gpus_per_worker: of a model that takes several: `gpus` are workers then, and a worker has as
        many PCIe links; what they hold and how fast they compute is in the profile.
    host_share: of a host's memory, disk and link that is there: a host in part, with as many GPUs.
    users: who ask at the same time; of a trace with arrivals of its own, how much of it is played.
    policy: of placement, by its name (`loadtest.policies.placement.SYSTEMS`).
    missed: share of hints that are never sent.
    spurious: hints for turns that never come, per turn that does.
    priority_share: of sessions that are urgent.
    eviction: order in which pools, arenas and disks evict.
    without: what is switched off.
    packing: how KV is stored below GPUs (`loadtest.cluster.measured.PACKINGS`).
    trace: workload, by its name.
    schedulers: among which turns are divided.
    warm_ns: people ask for so long before anything counts, so that memory is as full as it stays.
    coarse: steps that only decode are taken several at once, and layers in groups.
    grouped: layers are taken in groups alone.
    """

    profile: str = "a100-llama3.1-8b"
    gpus: int = 8
    gpus_per_host: int = 4
    dram_gb: float = 256.0
    disk_gb: float = 4000.0
    link_gbit: float = 100.0
    gpus_per_worker: int = 1
    host_share: float = 1.0
    users: int = 1024
    policy: str = "cost"
    missed: float = 0.0
    spurious: float = 0.0
    priority_share: float = 0.0
    eviction: EvictionName = "predicted"
    without: frozenset[Without] = frozenset()
    packing: Packed = ""
    trace: str = "sharegpt-like"
    seed: int = 1
    duration_ns: int = 600 * SECOND
    warm_ns: int = 0
    coarse: bool = False
    grouped: bool = False
    schedulers: int = 1

    @property
    def lasts_ns(self) -> int:
        """The whole workload."""
        return self.warm_ns + self.duration_ns
