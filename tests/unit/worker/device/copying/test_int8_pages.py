"""KV that is stored as int8: below the pool other pages under other keys, in it what they stand
for, and nothing that is not finite."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue

import pytest
import torch

from kernels.kv_int8 import torch_ops
from loadtest.bench.lora.made import make_adapters
from loadtest.in_process_engine import InProcessEngine, Moves, some_prompt
from loadtest.local_store import LocalStore
from services.worker.core.effects import BlockWrite, PageLoads
from services.worker.device.copying.copies import CopyFailed, PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.int8_pages import Int8HostCopier, Int8Pages
from services.worker.device.copying.mover import KvMover, Moved, Stored
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.gpu.gpu_executor import DeviceApi, GpuExecutor
from services.worker.device.model import load_model
from services.worker.models.demo_model import make_demo_model
from shared.arena import Arena, PageState, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey
from shared.wire.urgency import DEMAND_PRIORITY
from tests.unit.worker.device.driver import pool_of, tables_of
from tests.unit.worker.device.test_torch_executor import save_model

PAGES = 6
SHAPE = (2, 3, BLOCK_TOKENS, 16)  # keys and values, heads, tokens, dimensions
FORM = Int8Pages(torch.Size((6, BLOCK_TOKENS, 16)))


@contextmanager
def moving(pool: torch.Tensor, folder: Path) -> Iterator[tuple[KvMover, Arena, "Queue[Moved]"]]:
    moved: Queue[Moved] = Queue()
    arena = Arena.create(folder / "arena", PAGES, FORM.page_bytes)
    mover = KvMover(Int8HostCopier(pool, FORM), PageGate(PAGES), moved.put, token_rows=0)
    mover.attach(arena, 1)
    yield mover, arena, moved
    mover.close()
    arena.close()


def block_write(
    number: int, pages: list[int], num_tokens: int = BLOCK_TOKENS, *, is_partial: bool = False
) -> BlockWrite:
    """A block of these pool pages, to the arena's pages of the same numbers."""
    key, parent = BlockKey(b"%d" % number), BlockKey(b"p")
    tokens = list(range(num_tokens))
    return BlockWrite(number, key, parent, tokens, pages, pages, is_partial=is_partial)


def rounded(page: torch.Tensor, num_tokens: int = BLOCK_TOKENS) -> torch.Tensor:
    """A page of the pool as it comes back."""
    stored = torch_ops.quantize(page.view(1, *FORM.page), num_tokens)
    return torch_ops.dequantize(stored, FORM.page, page.dtype).view(page.shape)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_what_is_loaded_is_what_was_stored_but_rounded(dtype: torch.dtype, tmp_path: Path) -> None:
    pool = torch.randn((PAGES, *SHAPE)).to(dtype)
    before = pool.clone()
    with moving(pool, tmp_path) as (mover, arena, moved):
        mover.submit_stores([block_write(1, [4, 1])], 1)
        stored = moved.get(timeout=30)
        assert stored == Stored({1: [checksum(arena.pages[page]) for page in (4, 1)]})
        for page in (4, 1):
            arena.set_word(page, 7, PageState.READY)
        mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [4, 1], [7, 7], [0, 5], 1)])
        assert mover.gate.wait([0, 5], 30_000_000_000)
    assert torch.equal(pool[1:5], before[1:5]), "what stays in the pool stays exact"
    assert torch.equal(pool[0], rounded(before[4])) and torch.equal(pool[5], rounded(before[1]))
    assert not torch.equal(pool[0], before[4])


def test_a_tail_is_rounded_by_its_own_tokens_and_brings_nothing_else(tmp_path: Path) -> None:
    pool = torch.randn((PAGES, *SHAPE))
    pool[2, :, :, 9:] = 1e30  # of others
    pool[2, 0, 0, 60] = torch.nan
    with moving(pool, tmp_path) as (mover, arena, moved):
        mover.submit_stores([block_write(1, [2], 9, is_partial=True)], 1)
        stored = moved.get(timeout=30)
        assert stored == Stored({1: [checksum(arena.pages[2])]})
        arena.set_word(2, 7, PageState.READY)
        mover.submit_loads([PageLoads(DEMAND_PRIORITY, 0, [2], [7], [3], 1)])
        assert mover.gate.wait([3], 30_000_000_000)
    assert not pool[3, :, :, 9:].any()
    assert (pool[3, :, :, :9] - pool[2, :, :, :9]).abs().max() < 0.05


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_block_that_is_not_finite_is_not_stored_and_costs_no_other(
    broken: float, tmp_path: Path
) -> None:
    pool = torch.randn((PAGES, *SHAPE))
    pool[1, 0, 2, 3, 4] = broken
    with moving(pool, tmp_path) as (mover, arena, moved):
        mover.submit_stores([block_write(1, [0, 1]), block_write(2, [2, 3])], 1)
        stored = moved.get(timeout=30)
        sums = [checksum(arena.pages[page]) for page in (2, 3)]
        assert stored == Stored({1: [], 2: sums})
        mover.check()


def load(folder: Path, stored_dtype: str) -> LoadedModel:
    return load_model(str(folder), "cpu", "auto", "fast", stored_dtype)  # type: ignore[arg-type]


def test_blocks_of_another_form_have_other_keys_and_pages(tmp_path: Path) -> None:
    save_model(tmp_path, "llama")
    exact, int8 = (load(tmp_path, stored).info("m", 9) for stored in ("model", "int8"))
    assert exact.fingerprint == load_model(str(tmp_path), "cpu", "auto").fingerprint
    assert exact.fingerprint != int8.fingerprint
    assert int8.page_bytes == exact.page_bytes == exact.stored_page_bytes
    channels = 2 * 2 * 16
    assert int8.stored_page_bytes == channels * (BLOCK_TOKENS + 4) < int8.page_bytes / 3


def test_adapters_are_built_each_time_and_nothing_of_them_is_rounded(tmp_path: Path) -> None:
    said, brought_up = [], []
    for stored_dtype in ("model", "int8"):
        model = load(make_demo_model(tmp_path / "demo"), stored_dtype)
        assert model.lora is not None
        (one,) = make_adapters(tmp_path / stored_dtype, model.lora, "all", [8], 1)
        moves, prompt = Moves(), some_prompt(1, 40, model.vocab_size)
        executor = TorchExecutor(model, "m", 40 * model.num_layers, moves)
        store = LocalStore(tmp_path, 20 * model.num_layers, executor.info.stored_page_bytes)
        for _ in range(2):
            with ThreadPoolExecutor(1) as thread:
                engine = InProcessEngine(
                    executor, thread, 512, store=store, moves=moves,
                    adapters_path=str(tmp_path / stored_dtype),
                )  # fmt: skip
                turn = engine.submit(prompt, 6, one.ref)
                engine.run()
            brought_up += [source for source, _ in engine.core.adapters.stats.loads]
            said.append(turn.generated)
        executor.close()
        store.close()
    assert brought_up == ["files", "kvstore", "files", "files"]
    assert said[0] == said[1] == said[2] == said[3]


def test_history_comes_back_rounded_and_what_is_new_is_exact(tmp_path: Path) -> None:
    """By the executor for GPUs, whose copies are the host's here."""
    model = load(make_demo_model(tmp_path / "demo"), "int8")
    form, moves = model.stored_form, Moves()
    assert form is not None
    executor = GpuExecutor(
        model,
        "m",
        40 * model.num_layers,
        4,
        DeviceApi(partial(Int8HostCopier, form=form), None),
        moves,
    )
    store = LocalStore(tmp_path, 40 * model.num_layers, executor.info.stored_page_bytes)
    prompt = some_prompt(1, 200, model.vocab_size)
    pools: list[torch.Tensor] = []
    for _ in range(2):
        pool_of(executor).fill_(torch.nan)  # evicted, all of it
        with ThreadPoolExecutor(1) as thread:
            engine = InProcessEngine(
                executor, thread, 512, turns_running_max=4, store=store, moves=moves
            )
            engine.submit(prompt, 1)
            engine.run()
        pages = tables_of(executor)[:, 3, :4].long()  # of the only turn
        pools.append(pool_of(executor)[pages].view(model.num_layers, 4, *form.page))
    executor.close()
    store.close()
    assert engine.core.history.num_prefix_hits == 3
    before, after = (pool[:, :3].reshape(-1, *form.page) for pool in pools)
    stored = torch_ops.quantize(before, BLOCK_TOKENS)
    assert torch.equal(after, torch_ops.dequantize(stored, form.page, model.dtype))
    assert not torch.equal(after, before)
    tail = slice(0, 200 - 3 * BLOCK_TOKENS)
    torch.testing.assert_close(pools[0][:, 3, :, tail], pools[1][:, 3, :, tail], atol=0.1, rtol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_a_gpu_stores_the_same_bytes_and_brings_the_same_back(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    from services.worker.device.copying.cuda_int8_copier import cuda_int8_copier

    pool = torch.randn((PAGES, *SHAPE)).to(dtype)
    arenas = [Arena.create(tmp_path / name, PAGES, FORM.page_bytes) for name in ("host", "gpu")]
    on_gpu = pool.cuda()
    gpu = cuda_int8_copier(on_gpu, torch.cuda.current_stream(), FORM)
    gpu.attach(arenas[1])
    copiers: list[PageCopier] = [Int8HostCopier(pool, FORM), gpu]
    for copier, arena in zip(copiers, arenas, strict=True):
        store = copier.store([4, 1], arena, [0, 2])
        store.wait()
        assert store.checksums() == [checksum(arena.pages[page]) for page in (0, 2)]
        copier.store([3], arena, [5], 9).wait()
        copier.load(arena, [2, 5], [0, 5]).wait()
    assert (arenas[0].pages == arenas[1].pages).all()
    assert torch.equal(pool, on_gpu.cpu())
    on_gpu[2, 1, 0, 0, 0] = torch.nan
    torch.cuda.synchronize()
    with pytest.raises(CopyFailed):
        gpu.store([2], arenas[1], [1]).wait()
