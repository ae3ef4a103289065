"""How fast the parts of a simulated cluster are: what ours was measured to do, and what is
published of other systems. Each constant names its source: a page of docs/, or a publication.

Two are not ours: a GPU's step (`shared.profiles`, from data sheets) and the link's line rate.
"""

from typing import NamedTuple

# PCIe 4.0 x16 has 31.5 GB/s. On an H200 (PCIe 5.0 x16, 63 GB/s) a plain copy reaches 55, and our
# copies of pages 0.89 of that: docs/gpu.md, "Parts alone", 436a137.
PCIE_BYTES_PER_S = 31.5e9 * (55 / 63) * 0.89

# A kvstore's disk, 256 KiB pages, read through the page cache: docs/benchmarks.md, "Measured once".
# The process is the limit, not an NVMe disk of 6.8 GB/s.
DISK_READ_BYTES_PER_S = 3.20e9
# The same, written over: a disk in use for long. New files on that virtual disk: 0.54 GB/s.
DISK_WRITE_BYTES_PER_S = 2.54e9

# Ethernet less 6% for headers, and of that what one kvstore takes from another over its connection,
# loopback: docs/benchmarks.md, "Measured once"; docs/scale.md, "KV".
LINK_SHARE = 0.94
PEER_CONNECTIONS = 1
PEER_BYTES_PER_S = 1.85e9 * PEER_CONNECTIONS

# Write-behind makes a decode step of the H200 this much longer while it copies: docs/gpu.md,
# "Figures", 436a137.
STORING_SHARE = 0.09
# The host's share of a decode step of 64 turns (10.36 ms) on the H200 is 0.12: docs/gpu.md,
# "Figures". The engine plans ahead, so that half of it, planning and taking in results of `bench
# core` (0.24 ms), is hidden.
STEP_HOST_NS = round(0.12 * 10.36e6 - 0.24e6)
# Admitting a staged session of 15,968 pages 7.65 ms, registering its loads 3, staging it in the
# kvstore 1: docs/benchmarks.md, `bench core`.
STAGE_NS_PER_PAGE = (7.65e6 + 3e6 + 1e6) / 15_968
# A request added to the first byte at 250 a second: docs/benchmarks.md, `bench http`; of those
# 2.6 ms the scheduler's and the worker's part (0.18 and 0.36 ms of a core), and three messages, are
# simulated by themselves.
FRONTEND_TURN_NS = round((2.6 - 0.18 - 0.36 - 3 * 0.25) * 1e6)


class Packing(NamedTuple):
    """KV that is stored smaller than GPUs have it.

    Attributes:
        share: of its bytes.
        unpack_bytes_per_s: of whole KV; GPU time, in which no step runs.
    """

    share: float
    unpack_bytes_per_s: float


PACKINGS = {
    "": Packing(1.0, float("inf")),
    # Ours, `SYMPHONY_KV_STORED_DTYPE=int8`: 47% saved (docs/benchmarks.md, "Measured once");
    # unpacking reads one byte and writes two an element at 75% of an A100's 2,039 GB/s.
    "int8": Packing(0.53, 2_039e9 * 0.75 * 2 / 3),
    # LMCache's: "3.5-4.3x" smaller (CacheGen, SIGCOMM '24, abstract, arXiv 2310.07240). How fast it
    # is unpacked is not published in bytes a second. DietGPU's rANS decoder takes its place, the
    # fastest public one: "250-410 GB/s on an A100" (its README), which favours LMCache.
    "cachegen": Packing(1 / 3.5, 250e9),
}
