"""The engine in one process: what it stored comes back, and says the same."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from loadtest.bench.lora.made import make_adapters
from loadtest.in_process_engine import InProcessEngine, Moves, some_prompt
from loadtest.local_store import LocalStore
from services.worker.device.copying.copies import HostCopier
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.gpu.gpu_executor import DeviceApi, GpuExecutor
from services.worker.device.model import load_model
from services.worker.models.demo_model import make_demo_model
from tests.unit.worker.device.driver import pool_of, tables_of


def test_history_goes_to_the_store_and_comes_back(tmp_path: Path) -> None:
    model = load_model(str(make_demo_model(tmp_path / "demo")), "cpu", "auto")
    moves = Moves()

    def copier(pool: torch.Tensor) -> HostCopier:
        return HostCopier(pool.view(torch.uint8).numpy().reshape(len(pool), -1))

    executor = GpuExecutor(model, "m", 40 * model.num_layers, 4, DeviceApi(copier, None), moves)
    # With no page more than the first run leases at once, and those are enough.
    store = LocalStore(tmp_path, 4 * model.num_layers, model.page_bytes)
    prompt = some_prompt(1, 200, model.vocab_size)
    pools: list[torch.Tensor] = []
    for _ in range(2):
        pool_of(executor).zero_()
        with ThreadPoolExecutor(1) as thread:
            engine = InProcessEngine(
                executor, thread, 512, turns_running_max=4, store=store, moves=moves
            )
            engine.submit(prompt, 1)
            engine.run()
        num_hits = engine.core.history.num_prefix_hits
        assert [len(turn.sent_ns) for turn in engine.turns.values()] == [1]
        pages = tables_of(executor)[:, 3, :4].long()  # of the only turn
        pools.append(pool_of(executor)[pages])
    assert num_hits == 3, "three whole blocks of the prompt came from below"
    assert torch.allclose(pools[0], pools[1], atol=1e-5)
    executor.close()
    store.close()


def test_adapters_are_built_once_and_come_back_from_the_store(tmp_path: Path) -> None:
    model = load_model(str(make_demo_model(tmp_path / "demo")), "cpu", "auto")
    assert model.lora is not None
    one, two = make_adapters(tmp_path, model.lora, "all", [8], 2)
    moves, prompt = Moves(), some_prompt(1, 70, model.vocab_size)  # more than a block
    executor = TorchExecutor(model, "m", 40 * model.num_layers, moves)
    store = LocalStore(tmp_path, 20 * model.num_layers, model.page_bytes)
    said, brought_up = [], []
    for its_store in (None, store, store):
        with ThreadPoolExecutor(1) as thread:
            engine = InProcessEngine(
                executor, thread, 512, store=its_store, moves=moves, adapters_path=str(tmp_path)
            )
            turns = [engine.submit(prompt, 6, ref) for ref in (one.ref, None, two.ref, one.ref)]
            engine.run()
        brought_up.append([source for source, _ in engine.core.adapters.stats.loads])
        said.append([turn.generated for turn in turns])
    executor.close()
    store.close()
    assert brought_up == [["files"] * 2, ["files"] * 2, ["kvstore"] * 2]
    assert said[0] == said[1] == said[2]
    on_one, on_base, on_two, again = said[0]
    assert on_one == again and len({tuple(each) for each in (on_one, on_base, on_two)}) == 3
