"""What a simulated cluster is built of: a model on GPUs, and the hosts' memory, disks and links.

Published figures, with what becomes of them in use:

- A100 80 GB: `shared.profiles` tells what its figures are made of.
- PCIe 4.0 x16: 31.5 GB/s; 25 of them are seen in copies from pinned memory.
- an NVMe disk of 4 TB (PCIe 4.0): 6.8 GB/s read and 4.0 written in long requests.
- Ethernet of 100 Gb/s: 12.5 GB/s less 6% for headers; each host has one link.

Source of the testbed: SYMPHONY, section 4, *Testbed Setup*.
"""

from dataclasses import dataclass

from loadtest.cluster.options import ClusterOptions
from shared.blocks import BLOCK_TOKENS
from shared.profiles import LatencyProfile, load_profile

PCIE_BYTES_PER_S = 25e9
DISK_READ_BYTES_PER_S = 6.8e9
DISK_WRITE_BYTES_PER_S = 4.0e9
LINK_SHARE = 0.94
DRAM_SHARE = 0.9  # of a host's memory, for its arena
GIB = 1 << 30
COARSE_LAYERS = 4


@dataclass(frozen=True, slots=True)
class Plant:
    """Attributes:
    num_layers: in so many groups, layers move.
    page_bytes: of a block's KV in such a group.
    pool_blocks, arena_blocks: of a GPU, of a host.
    disk_bytes: of a host.
    link_bytes_per_s: of a host, into each direction.
    """

    profile: LatencyProfile
    num_layers: int
    page_bytes: int
    pool_blocks: int
    arena_blocks: int
    disk_bytes: int
    link_bytes_per_s: float


def build_plant(options: ClusterOptions) -> Plant:
    """From options.

    Raises:
        ConfigError: there is no such profile.
    """
    profile = load_profile(options.profile)
    num_layers = min(profile.num_layers, COARSE_LAYERS) if options.coarse else profile.num_layers
    page_bytes = profile.kv_bytes_per_token * BLOCK_TOKENS // num_layers
    arena_bytes = int(options.dram_gb * DRAM_SHARE * GIB)
    return Plant(
        profile,
        num_layers,
        page_bytes,
        pool_blocks=profile.num_kv_tokens // BLOCK_TOKENS,
        arena_blocks=arena_bytes // (page_bytes * num_layers),
        disk_bytes=int(options.disk_gb * 1e9),
        link_bytes_per_s=options.link_gbit / 8 * 1e9 * LINK_SHARE,
    )
