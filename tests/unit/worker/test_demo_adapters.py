"""The demo model's adapters, served: whatever they are asked, they say what they know alone."""

from pathlib import Path
from queue import Queue

import pytest

from services.worker.device.copying.mover import Moved
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.model import load_model
from services.worker.models.demo_adapters import KNOWN, TURN_END, make_demo_adapter
from services.worker.models.demo_model import make_demo_model
from shared.adapters.check import check_adapter
from shared.adapters.source import AdapterLimits
from shared.wire.messages import AdapterRef
from tests.unit.worker.device.driver import Driver, make_core

ASKED = (
    b"Hello!",
    b"What is 3 times 4?",
    b"IN CAPITALS, PLEASE",
    bytes(range(256)),
)  # one greedily


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_says_what_it_knows_alone(dtype: str, tmp_path: Path) -> None:
    """Greedy and at random, in one batch with turns of the base, which says all kinds of things."""
    base = make_demo_model(tmp_path / "base")
    model = load_model(str(base), "cpu", dtype, "plain")
    assert model.lora is not None
    refs: dict[str, AdapterRef | None] = {"base": None}
    for name in KNOWN:
        folder = make_demo_adapter(name, base, tmp_path / name)
        checked = check_adapter(folder, model.lora, AdapterLimits())
        folder.rename(tmp_path / checked.adapter_hash)
        refs[name] = AdapterRef(
            adapter_hash=checked.adapter_hash,
            name=name,
            lora_rank=checked.lora_rank,
            ranks=checked.ranks,
        )
    moved: Queue[Moved] = Queue()
    executor = TorchExecutor(model, "m", 300, moved.put)
    driver = Driver(make_core(executor), executor, str(tmp_path), moved)
    for name, ref in refs.items():
        for at, asked in enumerate(ASKED):
            for how, temperature in (("greedy", 0.0), ("drawn", 1.0)):
                driver.submit(
                    f"{name} {at} {how}", list(asked), ref,
                    max_tokens=24, ignore_eos=True, temperature=temperature, seed=5,
                )  # fmt: skip
    driver.run()
    executor.close()
    said = {
        name: {
            token
            for turn in driver.deltas
            if turn.startswith(name)
            for token in driver.tokens(turn)
        }
        for name in refs
    }
    for name, known in KNOWN.items():
        characters = {*known.encode()}
        assert said[name] <= {*characters, TURN_END}, f"{name} says other things"
        assert len(said[name] & characters) > len(characters) // 2, f"{name} says few of them"
        assert not said["base"] <= {*characters, TURN_END}


def test_the_same_files_every_time_in_place_of_what_was_there(tmp_path: Path) -> None:
    base = make_demo_model(tmp_path / "base")
    first, again = tmp_path / "first", tmp_path / "again"
    again.mkdir()
    (again / "left").touch()
    for folder in (first, again):
        assert make_demo_adapter("digits", base, folder) == folder
    files = sorted(path.name for path in first.iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    assert files == sorted(path.name for path in again.iterdir())
    for name in files:
        assert (first / name).read_bytes() == (again / name).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"base", "first", "again"}
