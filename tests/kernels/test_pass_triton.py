"""A GPU's whole pass: every kernel of a decoder is Triton's, in its interpreter or counted."""

from collections import Counter
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.paged_attention import select as attention_select
from kernels.pointwise import select as pointwise_select
from kernels.sgmv import select as sgmv_select
from kernels.triton_kernels import _imported
from loadtest.bench.gpu.models import record_all
from services.worker.device.gpu.gpu_executor import DeviceApi, GpuExecutor
from services.worker.device.gpu.pass_inputs import PassKind
from services.worker.device.gpu.pass_parts import GROUPS
from services.worker.device.gpu.recordings import PassPart
from services.worker.device.layers import fast
from services.worker.device.layers.merged import joined
from services.worker.device.model import load_model
from tests.kernels.interpreter import IS_INTERPRETED
from tests.unit.worker.device.gpu.test_gpu_executor import (
    Repeats,
    host_copier,
    reasons,
    say,
)
from tests.unit.worker.device.lora.test_lora import Served, serve
from tests.unit.worker.device.test_torch_executor import greedy, prompt, save_model

pytest.importorskip("triton", reason="Triton is not installed")
# What PEFT asks transformers is not ours to change.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="run by test_triton_without_a_gpu")
counted = pytest.mark.skipif(IS_INTERPRETED, reason="counts launches, and runs none")
LAUNCHES_A_LAYER = 12
LAUNCHES_A_SITE = 2  # shrink and expand
# What torch launches nothing for: views, and memory.
NO_LAUNCH = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "detach_", "empty",
    "empty_like", "empty_strided", "expand", "flatten", "lift_fresh", "new_empty", "permute",
    "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unsqueeze",
    "view",
}  # fmt: skip


def modules() -> dict[str, ModuleType]:
    """Triton's kernels, by package."""
    found = {name: _imported(name) for name in ("paged_attention", "pointwise", "sgmv")}
    assert None not in found.values()
    return found  # type: ignore[return-value]


class Joined(nn.Module):
    """Stands in for packed layers: siblings share a product as they do on a GPU."""

    def __new__(cls, *parts: nn.Linear, fixed_rows: bool) -> nn.Linear:  # type: ignore[misc]
        return joined(*parts)


@pytest.fixture(autouse=True)
def layers_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "can_pack", lambda dtype: True)
    monkeypatch.setattr(fast, "PackedLinear", Joined)
    monkeypatch.setattr(fast, "_pack", lambda *given: None)


def use_triton(patch: pytest.MonkeyPatch) -> None:
    for select in (attention_select, sgmv_select):
        patch.setattr(select, "triton_kernels", lambda package, device: _imported(package))
    patch.setattr(pointwise_select, "_kernels", lambda tensor: _imported("pointwise"))


def executor_of(folder: Path, recorder: Any) -> GpuExecutor:
    model = load_model(str(folder), "cpu", "float32")
    return GpuExecutor(model, "m", 60, 3, DeviceApi(host_copier, recorder), lambda _: None)


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of padding, which computes with garbage
@pytest.mark.parametrize("kind", ["qwen3", "gemma2"])
def test_recorded_passes_say_what_transformers_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms before and behind, of heads, of windows and soft caps; prompts in chunks, decodes and
    both, in buckets with room to spare."""
    reference = save_model(tmp_path, kind, num_hidden_layers=2)
    repeats = Repeats((1, 4, 24))
    executor = executor_of(tmp_path, repeats.recorder)
    use_triton(monkeypatch)
    record_all(executor)
    found = reasons(executor)
    lengths = [30, 2, 9]
    assert say(executor, lengths, prefill_tokens_max=20, turns_running_max=3) == [
        greedy(reference, prompt(n, length), 4 + n) for n, length in enumerate(lengths)
    ]
    assert set(found) == {""}
    executor.close()


class Launches(TorchDispatchMode):
    """Counts what torch launches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in NO_LAUNCH:
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


class Noted:
    """Stands in for a kernel of Triton's: counts its launches and runs none."""

    def __init__(self, name: str, names: "Counter[str]") -> None:
        self._name = name
        self._names = names

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def note(*args: Any, **named: Any) -> None:
            self._names[self._name] += 1

        return note


def count(executor: GpuExecutor, kind: PassKind, patch: pytest.MonkeyPatch) -> "Counter[str]":
    """Launches of a pass, by name."""
    assert executor._recordings is not None
    parts: list[PassPart] = executor._recordings.make(kind).parts
    launches = Launches()
    with patch.context() as inner, torch.inference_mode(), launches:
        use_triton(inner)
        for module in modules().values():
            inner.setattr(module, "_is_interpreted", lambda: False, raising=False)
            inner.setattr(module, "_multiprocessors", lambda device: 132, raising=False)
            for name in [name for name in vars(module) if name.endswith("_kernel")]:
                inner.setattr(module, name, Noted(name, launches.names))
        for part in parts:
            part.launch()
    assert len(parts) == (min(GROUPS, executor.info.num_layers) if kind.is_cut else 1)
    return launches.names


@counted
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "phi3", "olmo2"])
def test_a_layer_is_a_dozen_launches(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the difference of two models, one of which has a layer more."""
    names = []
    for layers in (3, 4):
        folder = tmp_path / str(layers)
        save_model(folder, kind, num_hidden_layers=layers)
        executor = executor_of(folder, Repeats().recorder)
        of = partial(count, executor, patch=monkeypatch)
        names.append([of(PassKind(16, False)), of(PassKind(2, True)), of(PassKind(512, False))])
        executor.close()
    for fewer, more in zip(*names, strict=True):
        layer = more - fewer
        assert 9 <= layer.total() <= LAUNCHES_A_LAYER, layer


@counted
def test_adapters_are_two_launches_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Served = serve("llama", tmp_path)
    api = DeviceApi(host_copier, Repeats().recorder)
    executor = GpuExecutor(served.model, "m", 60, 3, api, lambda _: None)
    base = count(executor, PassKind(16, False), monkeypatch)
    adapted = count(executor, PassKind(16, False, rank=16), monkeypatch)
    executor.close()
    sites = 4 * served.model.num_layers + 1  # q, k, v; o; gate, up; down; the head
    added = adapted - base
    assert added["_shrink_kernel"] == added["_expand_kernel"] == sites
    assert added.total() <= LAUNCHES_A_SITE * sites
