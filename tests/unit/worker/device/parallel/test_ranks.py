"""Two processes compute one model: the logits of one process, and the end of one is the other's."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch

from services.worker.device.copying.copies import CopyFailed
from services.worker.device.copying.mover import Moved
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.layers import Mode
from services.worker.device.model import load_model
from services.worker.device.parallel.ranks import RankLost, Ranks, RankSpec
from services.worker.load import make_real
from services.worker.rank.loading import load_rank, loaded, sum_over
from shared.arena import Arena
from shared.errors import ConfigError
from tests.unit.worker.device.driver import Driver, make_core, tables_of
from tests.unit.worker.device.lora.test_lora import BASE, Peft, logprobs, peft_of
from tests.unit.worker.device.test_torch_executor import prompt, save_model
from tests.unit.worker.oneshot.models import settings

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

NUM_PAGES = 900
PAGE_BYTES = 2 * 2 * 64 * 16 * 4  # of `make`'s models: two KV heads of 16
END_S = 60  # of a process that ends by itself; far more than it takes


def make(kind: str, folder: Path, **changes: Any) -> None:
    """A small model, whose biases, if it has some, are no zeros."""
    model = save_model(folder, kind, **changes)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if name.endswith("bias"):
                each.normal_()
    model.save_pretrained(folder)


@contextmanager
def two_ranks(
    folder: Path, moved: "Queue[Moved]", layers: Mode = "fast", timeout_s: float = 60.0
) -> Iterator[tuple[TorchExecutor, Ranks, "Queue[str]"]]:
    lost: Queue[str] = Queue()
    spec = RankSpec("m", str(folder), "float32", layers, 0, 2, 1)
    ranks = Ranks(spec, on_lost=lost.put, timeout_s=timeout_s)
    model = load_rank(spec)
    ranks.start()
    sum_over(ranks.meet(loaded(model), NUM_PAGES), model)
    executor = TorchExecutor(model, "m", NUM_PAGES, moved.put, ranks=ranks)
    try:
        yield executor, ranks, lost
    finally:
        executor.close()
    assert all(each.process.returncode is not None for each in ranks.others)


def run(
    executor: TorchExecutor, moved: "Queue[Moved]", peft: Peft | None = None
) -> tuple[Driver, list[torch.Tensor]]:
    """Prompts in chunks and decodes, on adapters if there are some, and all their logits."""
    logits: list[torch.Tensor] = []
    compute = executor._pass

    def record(*args: Any) -> torch.Tensor:
        logits.append(compute(*args))
        return logits[-1]

    executor._pass = record  # type: ignore[method-assign, assignment]
    core = make_core(executor, prefill_tokens_max=100)
    folder = "" if peft is None else str(peft.folder)
    driver = Driver(core, executor, folder, moved)
    for at, name in enumerate([BASE, *(peft.refs if peft is not None else ("other", "third"))]):
        ref = None if peft is None else peft.refs.get(name)
        tokens = prompt(at, 60 + 30 * at)
        driver.submit(name, tokens, ref, max_tokens=70, prompt_logprobs=0)
    driver.run()
    return driver, logits


def agree(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """All logits of two runs, pass by pass."""
    assert len(ours) == len(theirs) > 70
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-5, rtol=1e-5)


def test_the_logits_are_those_of_one_process(tmp_path: Path) -> None:
    """By transformers' own forward; norms of single heads, and behind what is summed."""
    make("gemma3_text", tmp_path)
    moved: Queue[Moved] = Queue()
    with two_ranks(tmp_path, moved, "plain") as (executor, _, _):
        ours, got = run(executor, moved)
    one = TorchExecutor(load_model(str(tmp_path), "cpu", "float32", "plain"), "m", 900, moved.put)
    theirs, want = run(one, moved)
    one.close()
    agree(got, want)
    for name in theirs.deltas:
        assert ours.tokens(name) == theirs.tokens(name)


@pytest.fixture(scope="module")
def biased(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, TorchExecutor, "Queue[Moved]"]]:
    """A model of two ranks, as a worker loads it, computed by our own forward; its folder, and what
    moves."""
    base = tmp_path_factory.mktemp("biased")
    make("llama", base, attention_bias=True, mlp_bias=True)
    moved: Queue[Moved] = Queue()
    config = settings(
        device="cpu",
        dtype="float32",
        kv_bytes=NUM_PAGES * PAGE_BYTES,
        num_threads=2 * torch.get_num_threads(),  # as many as before, in each process
        tensor_parallel=2,
    )
    executor = make_real(config, "m", str(base), moved.put)
    assert isinstance(executor, TorchExecutor)
    yield base, executor, moved
    executor.close()


def test_adapters_add_what_they_add_in_one_process(
    biased: tuple[Path, TorchExecutor, "Queue[Moved]"], tmp_path: Path
) -> None:
    """Of several ranks, on all layers or some, and on the head; against PEFT, too."""
    base, executor, moved = biased
    assert executor.info.lora is not None
    peft = peft_of("llama", base, tmp_path / "adapters", executor.info.lora)
    ours, _ = run(executor, moved, peft)
    assert ours.num_carried > 0, "no step was planned before a token was chosen"
    one = TorchExecutor(load_model(str(base), "cpu", "float32"), "m", NUM_PAGES, moved.put)
    info = executor.info
    assert replace(one.info, fingerprint=info.fingerprint, image_card=info.image_card) == info
    assert one.info.fingerprint != info.fingerprint, "pages are laid out otherwise"
    theirs, _ = run(one, moved, peft)
    one.close()
    # By turn: when an adapter is loaded, and so which turns share a pass, is not the same twice.
    for at, name in enumerate([BASE, *peft.refs]):
        assert ours.tokens(name) == theirs.tokens(name)
        by_peft = peft.logprobs(name, prompt(at, 60 + 30 * at))
        assert torch.allclose(logprobs(ours, name), by_peft, atol=1e-4)
        assert torch.allclose(logprobs(ours, name), logprobs(theirs, name), atol=2e-5, rtol=1e-5)


def test_pages_are_stored_and_loaded_whole(
    biased: tuple[Path, TorchExecutor, "Queue[Moved]"], tmp_path: Path
) -> None:
    """Slices of the ranks lie side by side in an arena's page, and go back to where they were."""
    _, executor, _ = biased
    arena = Arena.create(tmp_path / "arena", 8, executor.info.page_bytes)
    copier = executor.mover._copier
    data = torch.randint(0, 256, (2, arena.page_bytes), dtype=torch.uint8).numpy()
    copier.write([5, 7], data)
    copier.attach(arena)
    stored = copier.store([7, 5], arena, [1, 3])
    assert (arena.pages[1] == data[1]).all() and (arena.pages[3] == data[0]).all()
    copier.load(arena, [3], [11]).wait()
    again = copier.store([11], arena, [6])
    assert (arena.pages[6] == data[0]).all()
    assert again.checksums() == stored.checksums()[1:]
    other = Arena.create(tmp_path / "arena", 8, executor.info.page_bytes)
    with pytest.raises(CopyFailed):
        copier.store([7], other, [1])  # which no rank has attached
    with pytest.raises(CopyFailed):
        copier.load(other, [1], [7]).wait()


def test_all_ranks_wait_for_history_and_fail_without(
    biased: tuple[Path, TorchExecutor, "Queue[Moved]"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes while the step waits for it, and not before."""
    _, executor, _ = biased
    driver = Driver(make_core(executor), executor)
    driver.submit("t", prompt(1, 70), logprobs=3)
    plan, _ = driver.core.plan_step(0)
    assert plan is not None
    driver.core.on_step(executor.launch(plan).result(), 0)
    plan, _ = driver.core.plan_step(0)
    assert plan is not None
    wanted = executor.launch(plan).result().sampled
    assert wanted != [None]
    pages = tables_of(executor)[:, plan.slots[0], 0].tolist()
    arena = Arena.create(tmp_path / "arena", len(pages), executor.info.page_bytes)
    copier = executor.mover._copier
    copier.attach(arena)
    copier.store(pages, arena, range(len(pages)))
    plan = replace(plan, awaited={0: [[page] for page in pages]})

    def load(waited: list[int], timeout_ns: int) -> bool:
        copier.load(arena, [pages.index(page) for page in waited], waited).wait()
        return True

    for come in (load, lambda *_: False):
        copier.write(pages, np.full_like(arena.pages, 77))
        monkeypatch.setattr(executor.mover.gate, "wait", come)
        result = executor.launch(plan).result()
        assert result.failed == (set() if come is load else {0})
        assert result.sampled == (wanted if come is load else [None])


def test_a_rank_that_dies_is_known_at_once_and_no_pass_begins(tmp_path: Path) -> None:
    make("llama", tmp_path)
    moved: Queue[Moved] = Queue()
    with two_ranks(tmp_path, moved) as (executor, ranks, lost):
        ranks.others[0].process.kill()
        assert lost.get(timeout=END_S) == "rank 1 of m has ended: status -9"
        with pytest.raises(RankLost, match="has ended"):
            executor.check_device()
        driver = Driver(make_core(executor), executor)
        driver.submit("one", prompt(1, 20))
        with pytest.raises(RankLost, match="has ended"):
            driver.run()


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_pass_in_time(tmp_path: Path) -> None:
    make("llama", tmp_path)
    moved: Queue[Moved] = Queue()
    with two_ranks(tmp_path, moved, timeout_s=2.0) as (executor, ranks, _):
        process = ranks.others[0].process
        process.send_signal(signal.SIGSTOP)
        try:
            driver = Driver(make_core(executor), executor)
            driver.submit("one", prompt(1, 20))
            with pytest.raises(RankLost, match=r"a pass has failed: .*Timed out"):
                driver.run()
        finally:
            process.send_signal(signal.SIGCONT)


FIRST = """
import os, sys, torch
from pathlib import Path
from services.worker.device.parallel.ranks import Ranks, RankSpec
from services.worker.rank.loading import load_rank, loaded
ranks = Ranks(RankSpec("m", sys.argv[1], "float32", "fast", 0, 2, 1))
model = load_rank(ranks.spec)
ranks.start()
ranks.meet(loaded(model), 90)
print(ranks.others[0].process.pid, flush=True)
sys.stdin.read()
"""


def test_the_end_of_the_first_is_the_end_of_all(tmp_path: Path) -> None:
    make("llama", tmp_path)
    first = subprocess.Popen(
        [sys.executable, "-c", FIRST, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert first.stdin is not None and first.stdout is not None
        other = os.pidfd_open(int(first.stdout.readline()))
        first.kill()
        first.wait(END_S)
        assert wait_end(other), "an orphan is left"
    finally:
        first.kill()
        first.communicate()


def wait_end(process: int) -> bool:
    """Whether a process, by its file, ends in time."""
    try:
        return bool(select.select([process], [], [], END_S)[0])
    finally:
        os.close(process)


@pytest.mark.slow
def test_a_rank_that_loads_something_else_is_refused(tmp_path: Path) -> None:
    """Such as weights that were replaced meanwhile."""
    make("llama", tmp_path)
    ranks = Ranks(RankSpec("m", str(tmp_path), "float32", "fast", 0, 2, 1))
    found = loaded(load_rank(ranks.spec))
    make("llama", tmp_path, rope_theta=5e4)
    ranks.start()
    with pytest.raises(ConfigError, match="SYMPHONY_TENSOR_PARALLEL=2: rank 1 has loaded"):
        ranks.meet(found, 90)
    ranks.close()
