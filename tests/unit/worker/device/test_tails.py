"""Turns that go on within a block, against plain transformers: nothing is computed twice, and
nothing else is said than from scratch."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.worker.core.effects import BlockWrite
from services.worker.core.kv.staged import Staged
from services.worker.device.copying.mover import Loaded, Stored
from services.worker.device.cpu.torch_executor import TorchExecutor
from shared.arena import Arena, checksum
from shared.blocks import BLOCK_TOKENS, BlockKey, chain_keys, child_key
from shared.ids import TurnId
from tests.unit.worker.device.driver import Driver, make_core, pool_of
from tests.unit.worker.device.test_torch_executor import executor_of, greedy, prompt, save_model


def check_said(driver: Driver, name: str, tokens: list[int], reference: Any) -> None:
    """A greedy turn said what the reference says, with its log-probabilities."""
    said = driver.tokens(name)
    assert said == greedy(reference, tokens, len(said))
    with torch.inference_mode():
        logits = reference(torch.tensor([tokens + said]), use_cache=False).logits[0]
    want = logits.log_softmax(-1)[range(len(tokens) - 1, len(tokens) + len(said) - 1), said]
    got = [entry.logprob for delta in driver.deltas[name] for entry in delta.logprobs or []]
    torch.testing.assert_close(torch.tensor(got), want, atol=1e-4, rtol=1e-4)


def test_a_session_computes_each_token_once(tmp_path: Path) -> None:
    """The model has a window, which ends within blocks as well."""
    reference = save_model(tmp_path, "mistral")
    tokens, num_history = prompt(1, 75), 0
    with executor_of(tmp_path) as executor:
        driver = Driver(make_core(executor, prefill_tokens_max=32), executor)
        for number in range(3):
            name = str(number)
            driver.submit(
                name, tokens, session="s", num_history=num_history, max_tokens=4, logprobs=0
            )
            driver.run()
            check_said(driver, name, tokens, reference)
            assert driver.deltas[name][0].cached_tokens == num_history
            num_history = len(tokens) + 4 - 1
            tokens = [*tokens, *driver.tokens(name), *prompt(50 + number, 20 + 40 * number)]


def pages_of(driver: Driver, executor: TorchExecutor, keys: list[BlockKey]) -> torch.Tensor:
    """What the pool has of these blocks: [layers, blocks, ...]."""
    pool = driver.core.pool
    rows = [pool.pages_of(pool.blocks[key]) for key in keys]
    found: torch.Tensor = pool_of(executor)[torch.tensor(rows).T]
    return found.clone()


def test_new_tokens_stand_behind_a_tail_that_comes_while_the_pass_runs(tmp_path: Path) -> None:
    """Its pages land as late as they can: when the pass waits for them."""
    reference = save_model(tmp_path, "llama")
    first = prompt(1, 150)
    with executor_of(tmp_path) as executor:
        before = Driver(make_core(executor), executor)
        before.submit("one", first, session="s", max_tokens=1)
        before.run()
        root = before.submit("two", first, max_tokens=1).cache.root
        before.run()
        keys = chain_keys(root, first)
        keys.append(child_key(keys[-1], first[len(keys) * BLOCK_TOKENS :]))
        below = pages_of(before, executor, keys)

        driver = Driver(make_core(executor), executor)
        core, num_layers = driver.core, executor.info.num_layers
        pool_of(executor).fill_(torch.nan)
        core.write_behind.is_connected = True
        second = [*first, *before.tokens("one"), *prompt(2, 20)]
        turn = driver.submit("three", second, num_history=150, max_tokens=6, logprobs=0)
        arena_pages = [list(range(3 * n, 3 * n + 3)) for n in range(num_layers)]
        answer = Staged(1, keys, arena_pages, arena_pages, epoch=1)
        assert core.on_staged(TurnId("three"), 1, answer, driver.now_ns()) == []
        landed: list[int] = []

        def land(pages: list[int], timeout_ns: int) -> bool:
            for loads in driver.loads:
                for source, page in zip(loads.arena_pages, loads.pool_pages, strict=True):
                    if page in pages:
                        pool_of(executor)[page] = below[divmod(source, 3)]
                        landed.append(page)
            return True

        executor.mover.gate.wait = land  # type: ignore[method-assign]
        plan, effects = core.plan_step(driver.now_ns())
        driver.perform(effects)
        assert plan is not None and plan.rows()[0].start == turn.cache.num_cached == 150
        result = executor.launch(plan).result()
        driver.moved.put(Loaded(landed, []))
        driver.hear(waits=False)
        driver.perform(core.on_step(result, driver.now_ns()))
        core.write_behind.disconnect()
        driver.run()
        check_said(driver, "three", second, reference)


def test_a_copy_of_a_tail_has_nothing_else_that_stood_in_its_pages(tmp_path: Path) -> None:
    """Not of other sessions, which may be deleted, nor of what its turn went on with meanwhile."""
    save_model(tmp_path, "llama")
    with executor_of(tmp_path) as executor:
        pool_of(executor).fill_(7.0)
        driver = Driver(make_core(executor), executor)
        executor.mover._on_moved = driver.moved.put
        driver.submit("one", prompt(1, 70), session="s", max_tokens=1)
        driver.run()
        (tail,) = [
            late
            for late in driver.core.write_behind._late.values()
            if len(late.tokens) < BLOCK_TOKENS
        ]
        info = executor.info
        arena = Arena.create(tmp_path / "arena", info.num_layers, info.page_bytes)
        pages = list(range(info.num_layers))
        executor.mover.prepare(arena)
        executor.mover.attach(arena, 1)
        pool_pages = driver.core.pool.pages_of(tail.block)
        write = BlockWrite(
            1, tail.block.key, tail.parent, tail.tokens, pool_pages, pages, is_partial=True
        )
        executor.mover.submit_stores([write], 1)
        stored = driver.moved.get(timeout=30)
        assert isinstance(stored, Stored)
        assert stored.checksums[1] == [checksum(arena.pages[page]) for page in pages]
        shape = (info.num_layers, *pool_of(executor).shape[1:])
        copied = torch.from_numpy(np.array(arena.pages)).view(pool_of(executor).dtype).view(shape)
        assert len(tail.tokens) == 6
        torch.testing.assert_close(
            copied[..., :6, :],
            pool_of(executor)[torch.tensor(pool_pages)][..., :6, :],
            atol=0,
            rtol=0,
        )
        assert not copied[..., 6:, :].any()
        arena.close()
