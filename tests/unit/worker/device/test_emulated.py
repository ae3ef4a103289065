"""An executor without a model: how large its pages are, and what is in them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from services.worker.config import WorkerConfig
from services.worker.device import emulated
from services.worker.device.copying.copies import HostCopier
from services.worker.device.copying.mover import Moved
from services.worker.device.emulated import EmulatedExecutor, words_of
from services.worker.load import make_emulated
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError
from shared.profiles import PROFILES, LatencyProfile
from shared.wire import messages as m
from shared.wire.messages import AdapterRef
from tests.unit.worker.device.driver import Driver, make_core, pool_of, tables_of

ZERO = PROFILES["zero"]
LLAMA = PROFILES["a100-llama3-8b"]
MIB = 1024**2


@contextmanager
def made(
    profile: LatencyProfile, pool_bytes: int | None = None
) -> Iterator[tuple[EmulatedExecutor, Driver]]:
    moved: Queue[Moved] = Queue()
    executor = EmulatedExecutor(profile, "none", moved.put, pool_bytes)
    try:
        yield executor, Driver(make_core(executor), executor, adapters="some", moved=moved)
    finally:
        executor.close()


def test_pages_are_small_unless_true_ones_are_asked_for() -> None:
    with made(LLAMA) as (executor, _):
        info = executor.info
        assert (info.page_bytes, info.num_pages) == (4 * BLOCK_TOKENS, 200_000)
        assert info.fingerprint == "emulated-a100-llama3-8b-2"


def test_true_pages_are_the_profile_s_and_as_many_as_fit() -> None:
    with made(LLAMA, 17 * MIB) as (executor, _):
        info = executor.info
        assert (info.page_bytes, info.num_layers, info.num_pages) == (256 * 1024, 32, 17 * 4)
        assert info.lora is not None and info.lora.page_bytes == info.page_bytes
        assert pool_of(executor).nbytes == 17 * MIB
    with made(LLAMA) as (small, _):
        assert info.fingerprint != small.info.fingerprint, "their blocks are not the same"


def test_what_comes_to_its_pool_may_come_over_a_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    speeds: list[float] = []

    def slow(copier: HostCopier, bytes_per_s: float) -> HostCopier:
        speeds.append(bytes_per_s)
        return copier

    monkeypatch.setattr(emulated, "SlowLink", slow)
    for link_mb_s in (0.0, 8.0):
        settings = {"data_dir": tmp_path, "link_mb_s": link_mb_s}
        config = WorkerConfig(**settings)  # type: ignore[arg-type]
        make_emulated(config, ZERO, lambda moved: None).close()
    assert speeds == [8e6], "without a link it is as near as memory"


def test_true_pages_are_no_more_than_the_profile_s_device_holds() -> None:
    with made(replace(ZERO, num_kv_tokens=4 * BLOCK_TOKENS), 1 << 30) as (executor, _):
        assert executor.info.num_pages == 4 * ZERO.num_layers


@pytest.mark.parametrize("pool_bytes", [None, MIB])
def test_pages_of_a_block_hold_its_tokens_words_all_over(pool_bytes: int | None) -> None:
    """Each token's part is as many bytes as its KV takes in a layer, full of it to the last."""
    with made(ZERO, pool_bytes) as (executor, driver):
        tokens = list(range(1, 2 * BLOCK_TOKENS + 1))
        driver.submit("t", tokens, max_tokens=1, ignore_eos=True)
        driver.run()
        pages = tables_of(executor)[:, -1, :2]  # of the only turn
        found = pool_of(executor)[pages]  # [layers, blocks, tokens, elements]
        token_bytes = 4 if pool_bytes is None else ZERO.kv_bytes_per_token // ZERO.num_layers
        assert found.shape == (ZERO.num_layers, 2, BLOCK_TOKENS, token_bytes // 4)
        wanted = words_of(0, np.array(tokens, np.int32)).reshape(2, BLOCK_TOKENS, 1)
        assert (found == wanted).all()
        assert found.nbytes == ZERO.num_layers * 2 * executor.info.page_bytes


# What may happen to pages [layers, blocks] of a pool.
HARM: dict[str, Callable[[Any, Any], None]] = {
    "damaged": lambda pool, pages: pool.__setitem__((pages[1, 1], 5), 7),
    "swapped": lambda pool, pages: pool.__setitem__(pages, pool[pages[:, ::-1]]),
    "of one layer": lambda pool, pages: pool.__setitem__(pages[0, 0], 0),
    "another's": lambda pool, pages: pool.__setitem__(
        pages, words_of(9, np.arange(2 * BLOCK_TOKENS, dtype=np.int32)).reshape(2, BLOCK_TOKENS, 1)
    ),
}


@pytest.mark.parametrize("harm", [None, *HARM])
def test_a_turn_goes_on_from_its_own_history_or_not_at_all(harm: str | None) -> None:
    told = list(range(1, 2 * BLOCK_TOKENS + 1))

    def run(name: str, tokens: list[int]) -> m.TurnDelta:
        driver.submit(name, tokens, max_tokens=1, ignore_eos=True, logprobs=1)
        driver.run()
        return driver.deltas[name][0]

    def logprob(delta: m.TurnDelta) -> float | None:
        return delta.logprobs[0].logprob if delta.logprobs else None

    with made(ZERO) as (executor, driver):
        run("first", told)
        whole = run("second", [*told, 9])
        assert whole.cached_tokens == len(told)
        if harm is not None:
            HARM[harm](pool_of(executor), tables_of(executor)[:, -1, :2])  # of the only turn
            with pytest.raises(AssertionError, match="not its turn's"):
                run("again", [*told, 9])
        else:
            assert logprob(run("again", [*told, 9])) == logprob(whole)
            assert logprob(run("another", [*told, 8])) != logprob(whole)


def test_an_adapter_s_pages_are_full_of_it_and_looked_at() -> None:
    adapter = AdapterRef(adapter_hash="ab" * 16, ranks={"emulated": 8})
    with made(ZERO, MIB) as (executor, driver):
        driver.submit("t", [1, 2, 3], adapter, max_tokens=2, ignore_eos=True)
        driver.run()
        assert bytes(driver.tokens("t")) == b"I "
        image, check = executor._adapters[0], executor._check_image
        pages = pool_of(executor).view(np.uint8).reshape(executor.info.num_pages, -1)
        page = pages[image.pages].reshape(-1, executor.info.page_bytes)
        assert (page == np.tile(page[0, :256], page.shape[1] // 256)).all()
        for place in (0, -1):
            pages[image.pages[-1, -1], place] ^= 1
            with pytest.raises(AssertionError, match="not its adapter's"):
                check(image)
            pages[image.pages[-1, -1], place] ^= 1
        check(image)


def test_a_worker_s_pool_of_true_pages_is_its_memory_for_kv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.load.make_demo_model", lambda folder: folder)
    monkeypatch.setattr("services.worker.load.CPU_KV_BYTES", 2 * MIB)

    def pages(**settings: object) -> tuple[int, int]:
        config = WorkerConfig(data_dir=tmp_path, **settings)  # type: ignore[arg-type]
        executor = make_emulated(config, replace(ZERO, num_kv_tokens=2**17), lambda _: None)
        executor.close()
        return executor.info.page_bytes, executor.info.num_pages

    assert pages(kv_bytes=MIB) == (256, 4096)
    assert pages(true_pages=True) == (2048, 1024)
    assert pages(true_pages=True, kv_bytes=MIB) == (2048, 512)
    with pytest.raises(
        ConfigError, match="SYMPHONY_KV_BYTES=8191 holds not even two blocks of zero"
    ):
        pages(true_pages=True, kv_bytes=8191)


def test_a_model_takes_no_more_than_is_asked_for_and_no_more_than_it_can(tmp_path: Path) -> None:
    def length(max_model_len: int) -> int:
        settings: dict[str, object] = {"max_model_len": max_model_len}
        config = WorkerConfig(data_dir=tmp_path, **settings)  # type: ignore[arg-type]
        executor = make_emulated(config, replace(ZERO, max_model_len=4096), lambda _: None)
        executor.close()
        return executor.info.max_model_len

    assert (length(0), length(100), length(4096)) == (4096, 100, 4096)
    with pytest.raises(ConfigError, match=r"SYMPHONY_MAX_MODEL_LEN=4097: .* 4096 tokens"):
        length(4097)
