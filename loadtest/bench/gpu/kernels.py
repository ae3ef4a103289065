"""Attention, page copies and adapters alone, beside the hardware's ceilings."""

from pathlib import Path
from typing import Any

import torch

from kernels.paged_attention import AttentionShape, DeviceBatch, RaggedBatch, paged_attention
from kernels.sgmv import DeviceSegments, Site, add_lora
from kernels.sgmv.device import copy_line, make_device_tables
from loadtest.bench.gpu.ceilings import rounded
from loadtest.bench.gpu.models import GpuShape, host_copier, wait_registered
from loadtest.bench.gpu.timing import median_s, per_call_s
from loadtest.bench.sgmv.cells import NUM_TARGETS, enter_adapters, page_elements
from services.worker.device.copying.copies import PageCopier
from shared.arena import Arena
from shared.blocks import BLOCK_TOKENS

CALLS = 32  # in one launch
SGMV_ROWS = (32, 64)
CACHED_SHARE = 4  # calls take turns on the large copy over this, more than any cache holds


def make_batch(
    device: torch.device,
    shape: GpuShape,
    lengths: list[int],
    contexts: list[int],
    num_layers: int = 2,
) -> tuple[torch.Tensor, torch.Tensor, RaggedBatch]:
    """Queries, a pool whose pages lie in random order, and the batch of these sequences."""
    blocks = [-(-context // BLOCK_TOKENS) for context in contexts]
    num_pages = num_layers * sum(blocks)
    order = torch.randperm(num_pages, dtype=torch.int32).view(num_layers, -1)
    tables = torch.zeros((num_layers, len(contexts), max(blocks)), dtype=torch.int32)
    for seq, count in enumerate(blocks):
        first = sum(blocks[:seq])
        tables[:, seq, :count] = order[:, first : first + count]
    dims = (num_pages, 2, shape.num_kv_heads, BLOCK_TOKENS, shape.head_dim)
    pool = torch.randn(dims, device=device, dtype=shape.dtype)
    query = torch.randn(
        (sum(lengths), shape.num_heads, shape.head_dim), device=device, dtype=shape.dtype
    )
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    slots = torch.arange(len(contexts), dtype=torch.int32)
    num_decodes = len(lengths) if max(lengths) == 1 else 0
    on_device = DeviceBatch(
        starts.to(device),
        torch.tensor(contexts, dtype=torch.int32, device=device),
        slots.to(device),
        num_decodes,
        max(lengths),
        max(contexts),
    )
    batch = RaggedBatch(starts.tolist(), contexts, slots.tolist(), tables.to(device), on_device)
    return query, pool, batch


def measure_attention(
    device: torch.device, shape: GpuShape, ceilings: dict[str, float], rounds: int
) -> dict[str, Any]:
    """Decodes beside the memory's rate, a whole prompt beside the matrix rate."""
    scores = AttentionShape(shape.head_dim**-0.5)
    figures: dict[str, Any] = {}
    kv_bytes = shape.token_bytes // shape.num_layers
    for rows in shape.batches:
        layer_bytes = rows * shape.context * kv_bytes
        num_layers = max(2, -(-shape.large_bytes // (CACHED_SHARE * layer_bytes)))
        contexts = [shape.context] * rows
        query, pool, batch = make_batch(device, shape, [1] * rows, contexts, num_layers)
        took_s = _attention_s(device, query, pool, batch, scores, rounds)
        rate = rows * shape.context * kv_bytes / took_s / 1e9
        figures[f"decode_us_batch_{rows}"] = took_s * 1e6
        figures[f"decode_share_of_memory_batch_{rows}"] = rate / ceilings["memory_gb_per_s"]
        del pool
    length = shape.prefill
    query, pool, batch = make_batch(device, shape, [length], [length])
    took_s = _attention_s(device, query, pool, batch, scores, rounds)
    flops = 4 * shape.num_heads * shape.head_dim * length * (length + 1) / 2
    figures["prefill_us"] = took_s * 1e6
    figures["prefill_share_of_matrix"] = flops / took_s / 1e12 / ceilings["matrix_tflops"]
    return rounded(figures)


def _attention_s(
    device: torch.device,
    query: torch.Tensor,
    pool: torch.Tensor,
    batch: RaggedBatch,
    scores: AttentionShape,
    rounds: int,
) -> float:
    num_layers = len(batch.page_tables)
    return per_call_s(
        device,
        lambda number: paged_attention(query, pool, number % num_layers, batch, scores),
        rounds,
        CALLS,
        is_recorded=True,
    )


def measure_copies(
    device: torch.device,
    shape: GpuShape,
    ceilings: dict[str, float],
    folder: Path,
    rounds: int,
) -> dict[str, Any]:
    """Pages of all layers, scattered on both sides, beside the link with one large copy."""
    page_bytes = shape.token_bytes // shape.num_layers * BLOCK_TOKENS
    num_pages = max(shape.large_bytes // page_bytes, 4)
    dims = (num_pages, 2, shape.num_kv_heads, BLOCK_TOKENS, shape.head_dim)
    pool = torch.zeros(dims, dtype=shape.dtype, device=device)
    arena = Arena.create(folder / "bench-copies", num_pages, page_bytes)
    arena.pages[:] = 1
    copier = _copier(device, pool)
    copier.attach(arena)
    wait_registered(copier, arena)
    here, there = (torch.randperm(num_pages).tolist() for _ in range(2))
    per_layer = max(num_pages // shape.num_layers, 1)
    runs = [
        (here[at : at + per_layer], there[at : at + per_layer])
        for at in range(0, num_pages, per_layer)
    ]

    def load_all() -> None:
        for copy in [copier.load(arena, here, there) for here, there in runs]:
            copy.wait()

    def store_all() -> None:
        for copy in [copier.store(there, arena, here) for here, there in runs]:
            copy.wait()

    num_bytes = num_pages * page_bytes
    up = num_bytes / median_s(device, load_all, rounds) / 1e9
    assert bool((pool.view(torch.uint8) == 1).all()), "a page did not come"
    down = num_bytes / median_s(device, store_all, rounds) / 1e9
    arena.path.unlink()
    return rounded(
        {
            "to_device_gb_per_s": up,
            "to_device_share_of_link": up / ceilings["link_to_device_gb_per_s"],
            "to_host_gb_per_s": down,
            "to_host_share_of_link": down / ceilings["link_to_host_gb_per_s"],
        }
    )


def measure_sgmv(
    device: torch.device, shape: GpuShape, ceilings: dict[str, float], rounds: int
) -> dict[str, float]:
    """One projection as wide as the model whose rows all have adapters of their own: the rate at
    which these are read, as a share of the memory's."""
    figures: dict[str, float] = {}
    for rows in SGMV_ROWS:
        num_bytes = 2 * shape.hidden * shape.lora_rank * rows * shape.dtype.itemsize
        took_s = _sgmv_s(device, shape, rows, rounds)
        figures[f"sgmv_us_{rows}"] = took_s * 1e6
        figures[f"sgmv_share_{rows}"] = num_bytes / took_s / 1e9 / ceilings["memory_gb_per_s"]
    return figures


def _sgmv_s(device: torch.device, shape: GpuShape, rows: int, rounds: int) -> float:
    hidden, page = shape.hidden, page_elements(shape.hidden)
    num_pages = max(
        int(CACHED_SHARE * shape.large_bytes) // (page * shape.dtype.itemsize), 4 * rows
    )
    pool = torch.randn((num_pages, page), device=device, dtype=shape.dtype)
    host, num_layers = enter_adapters(
        hidden, shape.dtype.itemsize, num_pages, [shape.lora_rank] * rows
    )
    tables = make_device_tables(
        num_layers, NUM_TARGETS, lines_max=rows, blocks_max=host.pages.shape[2],
        tiles_max=host.tiles.shape[3], rank_max=int(host.ranks.max()), device=device,
    )  # fmt: skip
    for line in range(rows):
        copy_line(host, line, tables)
    order = torch.arange(rows + 1, dtype=torch.int32, device=device)
    segments = DeviceSegments(order, order[:-1])
    sites = [Site((target,), (0,), (hidden,)) for target in range(NUM_TARGETS)]
    x, y = (torch.randn((rows, hidden), device=device).to(shape.dtype) for _ in range(2))

    def work(number: int) -> None:
        layer = number // NUM_TARGETS % num_layers
        add_lora(x, y, pool, layer, sites[number % NUM_TARGETS], segments, tables)

    return per_call_s(device, work, rounds, CALLS, is_recorded=True)


def _copier(device: torch.device, pool: torch.Tensor) -> PageCopier:
    if device.type != "cuda":
        return host_copier(pool)
    from services.worker.device.copying.cuda_copier import cuda_copier

    return cuda_copier(pool, torch.cuda.default_stream(device))
