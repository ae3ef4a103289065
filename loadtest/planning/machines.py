"""What GPUs stand in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Hosts.

    Attributes:
        gpus: of each.
        dram_gb, disk_gb, link_gbit: of each.
    """

    gpus: int = 4
    dram_gb: float = 256.0
    disk_gb: float = 4000.0
    link_gbit: float = 100.0
