"""Right first: what is measured, against the reference."""

import torch

from kernels.sgmv import add_lora
from kernels.sgmv.interface import NO_ADAPTER
from kernels.sgmv.reference import add_lora_reference
from loadtest.random_adapters import RandomAdapters, segments_of, site_of
from shared.wire.messages.adapters import LoraCard, LoraTarget

# |got - want| over |want| of a row: a rounding of `y`, and a little.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
NUM_IN, NUM_OUT = 200, 168
BATCHES = [
    [(0, 1)],
    [(1, 1), (0, 3), (NO_ADAPTER, 2), (2, 1), (1, 0), (0, 1)],
    [(2, 40), (1, 5), (0, 20)],
]


def refuse_if_wrong(dtype: torch.dtype) -> None:
    """Try the kernel on batches of several adapters, whole tiles and cut ones.

    Raises:
        AssertionError: it does not agree with the reference.
    """
    for page_elements in (1 << 14, 512):
        card = LoraCard(
            layers_path="layers",
            num_layers=2,
            element_bytes=dtype.itemsize,
            page_bytes=page_elements * dtype.itemsize,
            targets=[LoraTarget(name=name, num_in=NUM_IN, num_out=NUM_OUT) for name in "ab"],
        )
        adapters = RandomAdapters(card, dtype, num_pages=(1 << 18) // page_elements)
        for ranks in ({"a": 5, "b": 64}, {"b": 8}, {"a": 16, "b": 33}):
            adapters.add(ranks)
        site = site_of(card, ["a", "b"])
        for lengths in BATCHES:
            segments = segments_of(lengths)
            num_rows = int(segments.starts[-1])
            x = torch.randn(num_rows, NUM_IN).to(dtype)
            y = torch.randn(num_rows, 2 * NUM_OUT).to(dtype)
            want = add_lora_reference(x, y, adapters.pool, 1, site, segments, adapters.tables)
            add_lora(x, y, adapters.pool, 1, site, segments, adapters.tables)
            error = float(((y - want).norm(dim=1) / want.norm(dim=1)).max())
            assert error < TOLERANCE[dtype], f"sgmv in {dtype} is wrong by {error:.2g}"
