"""What a simulated cluster is built of: a model on GPUs, and the hosts' memory, disks and links.

How fast each part is says `loadtest.cluster.measured`. Source of the testbed: SYMPHONY, section 4,
*Testbed Setup*.
"""

from dataclasses import dataclass, replace

from loadtest.cluster.measured import (
    DISK_READ_BYTES_PER_S,
    DISK_WRITE_BYTES_PER_S,
    LINK_SHARE,
    PACKINGS,
    PCIE_BYTES_PER_S,
    PEER_BYTES_PER_S,
    STAGE_NS_PER_PAGE,
)
from loadtest.cluster.options import ClusterOptions
from loadtest.sim.timeline import SECOND
from shared.blocks import BLOCK_TOKENS
from shared.profiles import LatencyProfile, load_profile

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
    page_bytes: of a block's KV in such a group, below GPUs: smaller than there if it is packed.
    pool_blocks, arena_blocks: of a GPU, of a host.
    disk_bytes: of a host; `disk_read_bytes_per_s`, `disk_write_bytes_per_s`: of its disk.
    link_bytes_per_s: of a host, into each direction; `peer_bytes_per_s`: of that, what one kvstore
        takes from another.
    pcie_bytes_per_s: of a worker, into each direction.
    unpack_page_ns: GPU time to unpack a page that was loaded.
    stage_block_ns: what the host computes for a block that is found below the pool.
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
    peer_bytes_per_s: float
    pcie_bytes_per_s: float
    unpack_page_ns: float
    stage_block_ns: float


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
    whole_page_bytes = profile.kv_bytes_per_token * block_tokens // num_layers
    packing = PACKINGS[options.packing]
    page_bytes = int(whole_page_bytes * packing.share)
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
        peer_bytes_per_s=PEER_BYTES_PER_S * share,
        pcie_bytes_per_s=PCIE_BYTES_PER_S * options.gpus_per_worker,
        unpack_page_ns=whole_page_bytes * SECOND / packing.unpack_bytes_per_s,
        stage_block_ns=STAGE_NS_PER_PAGE * load_profile(options.profile).num_layers,
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
