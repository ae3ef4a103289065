"""What a simulated cluster is built of: a model on GPUs, and the hosts' memory, disks and links.

Published figures, with what becomes of them in use:

- A100 80 GB: `shared.profiles` says where its figures come from.
- PCIe 4.0 x16: 31.5 GB/s; 25 of them are seen in copies from pinned memory.
- an NVMe disk of 4 TB (PCIe 4.0): 6.8 GB/s read and 4.0 written in long requests.
- Ethernet of 100 Gb/s: 12.5 GB/s less 6% for headers; each host has one link.

Source of the testbed: SYMPHONY, section 4, *Testbed Setup*.
"""

from dataclasses import dataclass, replace

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
GROUPED_LAYERS = 8  # with 4, where disks are busy, twice as much history is computed again
COARSE_BLOCKS = 8  # blocks that are one
COARSE_TOKENS = 16  # that are one: a step makes one, and takes so many times as long


@dataclass(frozen=True, slots=True)
class Plant:
    """Attributes:
    profile: of a step; of a coarse cluster, of one that makes several tokens.
    grain: tokens that are one here.
    block_tokens: of those.
    num_layers: in so many groups, layers move.
    page_bytes: of a block's KV in such a group.
    pool_blocks, arena_blocks: of a GPU, of a host.
    disk_bytes: of a host; `disk_read_bytes_per_s`, `disk_write_bytes_per_s`: of its disk.
    link_bytes_per_s: of a host, into each direction.
    """

    profile: LatencyProfile
    grain: int
    block_tokens: int
    num_layers: int
    page_bytes: int
    pool_blocks: int
    arena_blocks: int
    disk_bytes: int
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float
    link_bytes_per_s: float


def build_plant(options: ClusterOptions) -> Plant:
    """From options.

    Raises:
        ConfigError: there is no such profile.
    """
    profile = load_profile(options.profile)
    num_layers, grain, block_tokens = profile.num_layers, 1, BLOCK_TOKENS
    if options.grouped:
        num_layers = min(num_layers, GROUPED_LAYERS)
    if options.coarse:
        num_layers, grain = min(num_layers, COARSE_LAYERS), COARSE_TOKENS
        block_tokens = BLOCK_TOKENS // grain * COARSE_BLOCKS
        profile = _coarse(profile, grain)
    page_bytes = profile.kv_bytes_per_token * block_tokens // num_layers
    share = options.host_share
    arena_bytes = int(options.dram_gb * share * DRAM_SHARE * GIB)
    return Plant(
        profile,
        grain,
        block_tokens,
        num_layers,
        page_bytes,
        pool_blocks=profile.num_kv_tokens // block_tokens,
        arena_blocks=arena_bytes // (page_bytes * num_layers),
        disk_bytes=int(options.disk_gb * share * 1e9),
        disk_read_bytes_per_s=DISK_READ_BYTES_PER_S * share,
        disk_write_bytes_per_s=DISK_WRITE_BYTES_PER_S * share,
        link_bytes_per_s=options.link_gbit / 8 * 1e9 * LINK_SHARE * share,
    )


def _coarse(profile: LatencyProfile, grain: int) -> LatencyProfile:
    """Its steps, `grain` of them at once: times of what is there in each are as many times as long,
    but a prompt's token is there in one."""
    return replace(
        profile,
        base_ms=profile.base_ms * grain,
        prefill_ms_per_token=profile.prefill_ms_per_token * grain,
        decode_ms_per_turn=profile.decode_ms_per_turn * grain,
        context_ms_per_token=profile.context_ms_per_token * grain * grain,
        kv_bytes_per_token=profile.kv_bytes_per_token * grain,
        num_kv_tokens=profile.num_kv_tokens // grain,
        max_model_len=profile.max_model_len // grain,
    )
