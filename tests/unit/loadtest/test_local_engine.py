"""The engine in one process: what it stored comes back, and says the same."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from loadtest.local_engine import LocalEngine, Moves, some_prompt
from loadtest.local_store import LocalStore
from services.worker.demo_model import make_demo_model
from services.worker.device.copies import HostCopier
from services.worker.device.gpu_executor import GpuExecutor
from services.worker.device.model import load_model


def test_history_goes_to_the_store_and_comes_back(tmp_path: Path) -> None:
    model = load_model(str(make_demo_model(tmp_path / "demo")), "cpu", "auto")
    moves = Moves()

    def copier(pool: torch.Tensor) -> HostCopier:
        return HostCopier(pool.view(torch.uint8).numpy().reshape(len(pool), -1))

    executor = GpuExecutor(model, "m", 40 * model.num_layers, 4, copier, None, moves)
    store = LocalStore(tmp_path, 40 * model.num_layers, model.page_bytes)
    prompt = some_prompt(1, 200, model.vocab_size)
    pools: list[torch.Tensor] = []
    for _ in range(2):
        executor._pool.zero_()
        with ThreadPoolExecutor(1) as thread:
            engine = LocalEngine(
                executor, thread, 512, turns_running_max=4, store=store, moves=moves
            )
            engine.submit(prompt, 1)
            engine.run()
        num_hits = engine.core.history.num_prefix_hits
        assert engine.said[-1][1] == 1
        pages = executor._tables.pages[:, 3, :4].long()  # of the only turn
        pools.append(executor._pool[pages])
    assert num_hits == 3, "three whole blocks of the prompt came from below"
    assert torch.allclose(pools[0], pools[1], atol=1e-5)
    executor.close()
    store.close()
