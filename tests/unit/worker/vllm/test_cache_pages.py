"""vLLM's KV caches as pages, in the layouts that its backends have."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

from services.worker.device.copying.copies import HostCopier
from services.worker.vllm.cache_pages import cache_pages
from shared.arena import Arena, checksum
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError

NUM_BLOCKS, NUM_LAYERS, HEADS, DIM = 6, 3, 2, 16
T = BLOCK_TOKENS


def caches(*shape: int, order: list[int] | None = None) -> dict[str, torch.Tensor]:
    """One a layer, of random numbers, behind others; `order`: of the axes in memory."""
    found = {}
    for layer in range(NUM_LAYERS):
        axes = order or list(range(len(shape)))
        cache = torch.randn(8 + prod(shape))[8:].view([shape[axis] for axis in axes])
        found[f"layer{layer}"] = cache.permute([axes.index(axis) for axis in range(len(shape))])
    return found


@pytest.mark.parametrize(
    ("shape", "order", "token_rows"),
    [
        ((NUM_BLOCKS, 2, T, HEADS, DIM), None, 2),  # K and V, tokens, heads
        ((NUM_BLOCKS, 2, T, HEADS, DIM), [0, 1, 3, 2, 4], 2 * HEADS),  # heads before tokens
        ((NUM_BLOCKS, T, HEADS, 2 * DIM), None, 1),
        ((NUM_BLOCKS, HEADS, T, 2 * DIM), None, HEADS),
        ((NUM_BLOCKS, T, 72), None, 1),  # of latent attention
        ((NUM_BLOCKS, T, T, DIM), None, 0),  # 64 heads: which are the tokens?
    ],
)
def test_a_page_is_a_block_of_a_layer(
    shape: tuple[int, ...], order: list[int] | None, token_rows: int
) -> None:
    by_name = caches(*shape, order=order)
    pages = cache_pages(by_name, NUM_BLOCKS)
    assert len(pages.layers) == NUM_LAYERS and pages.num_blocks == NUM_BLOCKS
    assert pages.token_rows == token_rows
    for layer, cache in zip(pages.layers, by_name.values(), strict=True):
        before = layer.clone()
        cache[2] += 1.0
        changed = (before != layer).any(dim=1).tolist()
        assert changed == [block == 2 for block in range(NUM_BLOCKS)]
        if token_rows:  # what is behind 10 tokens is what the rows say it is
            rows = layer[2].view(torch.float32).reshape(token_rows, T, -1)
            rows[:, 10:] = 0.0
            axis = shape[1:].index(T)
            behind = cache[2].movedim(axis, 0)[10:]
            assert not behind.any() and cache[2].movedim(axis, 0)[:10].all()


def test_layers_that_share_memory_count_once() -> None:
    by_name = caches(NUM_BLOCKS, T, HEADS, DIM)
    assert len(cache_pages({**by_name, "twin": by_name["layer0"]}, NUM_BLOCKS).layers) == 3


def test_layouts_are_told_apart() -> None:
    shape = (NUM_BLOCKS, 2, T, HEADS, DIM)
    heads_first = caches(*shape, order=[0, 1, 3, 2, 4])
    halves = {name: cache.half() for name, cache in heads_first.items()}
    found = [cache_pages(each, NUM_BLOCKS) for each in (caches(*shape), heads_first, halves)]
    assert len({pages.layout for pages in found}) == 3
    sizes = [pages.page_bytes / (2 * T * HEADS * DIM) for pages in found]
    assert sizes == [4, 4, 2]


@pytest.mark.parametrize(
    ("by_name", "word"),
    [
        (caches(2, NUM_BLOCKS, T, HEADS, DIM), "blocks first"),
        (caches(NUM_BLOCKS, 2, T, HEADS, DIM, order=[1, 0, 2, 3, 4]), "no run of bytes"),
        ({"wide": torch.zeros(NUM_BLOCKS, 3, T, DIM)[:, :2]}, "no run of bytes"),
        ({"apart": torch.zeros(2, NUM_BLOCKS, 2 * T)[..., :T].movedim(0, 1)}, "no run of bytes"),
        ({**caches(NUM_BLOCKS, T, DIM), "other": torch.zeros(NUM_BLOCKS, T, 1)}, "several"),
        ({**caches(NUM_BLOCKS, T, DIM), "other": torch.zeros(NUM_BLOCKS, DIM, T)}, "several"),
    ],
)
def test_what_is_no_page_is_refused_by_name(by_name: dict[str, torch.Tensor], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        cache_pages(by_name, NUM_BLOCKS)


def test_pages_go_to_the_arena_with_their_checksums_and_come_back(tmp_path: Path) -> None:
    pages = cache_pages(caches(NUM_BLOCKS, T, HEADS, DIM), NUM_BLOCKS)
    layers = [layer.numpy() for layer in pages.layers]
    before = np.concatenate(layers)
    arena = Arena.create(tmp_path / "arena", 20, pages.page_bytes)
    copier = HostCopier(*layers)
    copier.attach(arena)
    at, to = [1, 7, 13, 0], [9, 3, 4, 11]  # block 1 of all layers, and another one's first
    store = copier.store(at, arena, to)
    store.wait()
    assert store.checksums() == [checksum(arena.pages[page].data) for page in to]
    assert (arena.pages[to] == before[at]).all()
    copier.load(arena, to, [2, 8, 14, 17]).wait()
    after = np.concatenate(layers)
    assert (after[[2, 8, 14, 17]] == before[at]).all()
    untouched = [page for page in range(18) if page not in (2, 8, 14, 17)]
    assert (after[untouched] == before[untouched]).all()
    arena.close()
