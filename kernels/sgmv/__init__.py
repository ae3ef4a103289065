"""Segmented gather matrix-vector multiplication: what LoRA adapters add to a batch that mixes them
(Punica, section 4).

Weights lie in pages of the model's KV pool, cut into tiles; tables say where. Implementations:
`reference` (naive, for tests), `torch_ops` (any torch device, and what others do), `cpu` (reads
tiles in place; numba), `chunk` (packs them for AMX, for long segments; numba), `triton` (on a CUDA
device, for batches whose tables and segments are there).
"""

from kernels.sgmv.device import DeviceAdapterTables, DeviceSegments
from kernels.sgmv.interface import AdapterTables, Segments, Site
from kernels.sgmv.select import add_lora, warm_up
from kernels.sgmv.tables import enter_line, make_tables

__all__ = [
    "AdapterTables",
    "DeviceAdapterTables",
    "DeviceSegments",
    "Segments",
    "Site",
    "add_lora",
    "enter_line",
    "make_tables",
    "warm_up",
]
