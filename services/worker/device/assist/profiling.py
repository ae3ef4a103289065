"""What rows cost on this core: measured once, when a helper starts."""

import time

import numpy as np
import torch

from kernels.sgmv import add_lora
from services.worker.core.step import ImageEntry
from services.worker.device.assist.orders import Spec
from services.worker.device.assist.sharing import most_ns, rows_per_core
from services.worker.device.lora.tables import LoraLines, segments_of
from shared.adapters.layout import layout_image

LORA_RANK = 16
ROUNDS = 5


def profile(spec: Spec) -> int:
    """How many rows one core is given before another one helps: in the site with the most weights,
    at a common rank."""
    site_number = max(
        range(len(spec.sites)), key=lambda site: spec.num_in(site) + spec.num_out(site)
    )
    site, num_in = spec.sites[site_number], spec.num_in(site_number)
    known = (*spec.card.targets, *spec.card.outer)
    rank = min(LORA_RANK, spec.card.rank_max)
    ranks = {known[target].name: rank for target in site.targets}
    num_blocks = layout_image(spec.card, ranks).num_blocks
    elements = spec.card.page_bytes // spec.card.element_bytes
    pool = torch.zeros(num_blocks, elements, dtype=spec.dtype)
    lines = LoraLines(spec.card)
    pages = np.repeat(np.arange(num_blocks, dtype=np.int32)[:, None], spec.card.num_layers, 1)
    lines.enter([ImageEntry(0, "", ranks, pages)])
    x = torch.randn(spec.tokens_max, num_in).to(spec.dtype)
    y = torch.zeros(spec.tokens_max, spec.num_out(site_number))
    times_ns: dict[int, int] = {}
    num_rows = 1
    while num_rows <= spec.tokens_max:
        segments = segments_of(np.zeros(num_rows, np.int32))
        took_ns = []
        for _ in range(ROUNDS):
            started_ns = time.perf_counter_ns()
            add_lora(x[:num_rows], y[:num_rows], pool, 0, site, segments, lines.tables)
            took_ns.append(time.perf_counter_ns() - started_ns)
        times_ns[num_rows] = min(took_ns)
        if times_ns[num_rows] > most_ns(times_ns[1]):
            break
        num_rows *= 2
    return rows_per_core(times_ns)
