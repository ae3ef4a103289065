"""Passes that begin before all of an adapter is here."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from services.worker.core.step import Ints, StepPlan, StepResult
from services.worker.device.base.executor import Finished
from services.worker.device.copying.gate import ADAPTER_STALL_NS
from tests.unit.worker.device.driver import pool_of
from tests.unit.worker.device.gpu.test_gpu_executor import Repeats
from tests.unit.worker.device.lora import test_lora
from tests.unit.worker.device.lora.test_lora import BASE, logprobs, serve
from tests.unit.worker.device.test_torch_executor import prompt

# What PEFT asks transformers is not ours to change.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@dataclass
class Withheld:
    """An executor at whose steps no adapter is here: a page comes when it is waited for, and holds
    no number before.

    Attributes:
        late: lines and layers that do not come, once each.
        waited: what was waited for, page by page; of each step anew.
    """

    executor: Any
    late: set[tuple[int, int]] = field(default_factory=set)
    waited: list[int] = field(default_factory=list)
    num_late: int = 0
    _images: dict[int, Ints] = field(default_factory=dict)
    _saved: dict[int, torch.Tensor] = field(default_factory=dict)
    _layers: dict[int, tuple[int, int]] = field(default_factory=dict)  # of pages: line and layer

    def __post_init__(self) -> None:
        gate = self.executor.mover.gate
        gate.wait, gate.wait_started = self._wait, self._wait_started

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def launch(self, plan: StepPlan) -> Finished:
        self._images |= {image.line: image.pages for image in plan.images}
        lines = sorted({line for line in plan.adapters.tolist() if line >= 0})
        streams = {line: self._images[line].T.tolist() for line in lines}
        self.waited = []
        for line, layers in streams.items():
            for layer, pages in enumerate(layers):
                for page in pages:
                    self._layers[page] = line, layer
                    self._saved[page] = pool_of(self.executor)[page].clone()
                    pool_of(self.executor)[page] = float("nan")
        result: StepResult = self.executor.launch(replace(plan, streams=streams)).result()
        layers_waited = [self._layers[page][1] for page in self.waited]
        assert layers_waited == sorted(layers_waited), "no layer is waited for before it is needed"
        self._bring(list(self._saved))
        return Finished(result)

    def _bring(self, pages: list[int]) -> None:
        for page in pages:
            if page in self._saved:
                pool_of(self.executor)[page] = self._saved.pop(page)

    def _wait(self, pages: list[int], timeout_ns: int) -> bool:
        places = {self._layers[page] for page in pages if page in self._saved}
        if late := places & self.late:
            assert timeout_ns == ADAPTER_STALL_NS
            self.late -= late
            self.num_late += 1
            return False
        self.waited += [page for page in pages if page in self._saved]
        self._bring(pages)
        return True

    def _wait_started(self, pages: list[int], timeout_ns: int) -> list[Any] | None:
        return [] if self._wait(pages, timeout_ns) else None


@pytest.mark.parametrize("kind", ["llama", "gpt2", "phi3"])
@pytest.mark.parametrize("on", ["cpu", "gpu"])
def test_each_layer_waits_for_its_own_pages_and_reads_nothing_before(
    kind: str, on: str, tmp_path: Path
) -> None:
    served = serve(kind, tmp_path)
    turns = {name: (name, prompt(2, 60), 6) for name in [BASE, *served.peft.refs]}
    wanted = served.run(turns)
    withheld: list[Withheld] = []

    def wrap(executor: Any) -> Any:
        withheld.append(Withheld(executor))
        return withheld[0]

    record = Repeats() if on == "gpu" else None
    streamed = served.run(turns, record=record, wrap=wrap)
    assert withheld[0].waited
    for name in turns:
        assert streamed.tokens(name) == wanted.tokens(name)
        assert torch.allclose(logprobs(streamed, name), logprobs(wanted, name), atol=1e-5)


def test_the_head_waits_for_all_layers_whose_pages_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter of the head alone: nothing in the layers waits for it."""
    head = LoraConfig(
        task_type="CAUSAL_LM", r=64, target_modules=["lm_head"], init_lora_weights=False
    )
    monkeypatch.setattr(test_lora, "configs", lambda _: {"head": head})
    served = serve("llama", tmp_path)
    turns = {name: (name, prompt(2, 60), 6) for name in [BASE, "head"]}
    wanted = served.run(turns)
    withheld: list[Withheld] = []

    def wrap(executor: Any) -> Any:
        withheld.append(Withheld(executor))
        return withheld[0]

    streamed = served.run(turns, wrap=wrap)
    layers = {withheld[0]._layers[page][1] for page in withheld[0].waited}
    assert len(layers) > 1, "its pages are in one layer only"
    for name in turns:
        assert streamed.tokens(name) == wanted.tokens(name)


@pytest.mark.parametrize("on", ["cpu", "gpu"])
def test_a_late_layer_fails_its_own_rows_once(on: str, tmp_path: Path) -> None:
    """Of two adapters, a layer in the middle and the last; both are used by two turns."""
    served = serve("llama", tmp_path)
    turns = {name: (name, prompt(2, 60), 6) for name in [BASE, *served.peft.refs]}
    turns |= {f"{name} again": (name, prompt(3, 30), 6) for name in served.peft.refs}
    wanted = served.run(turns)
    withheld: list[Withheld] = []

    def wrap(executor: Any) -> Any:
        withheld.append(Withheld(executor, late={(1, 1), (2, executor.info.num_layers - 1)}))
        return withheld[0]

    record = Repeats() if on == "gpu" else None
    streamed = served.run(turns, record=record, wrap=wrap)
    assert withheld[0].num_late == 2
    for name in turns:
        assert streamed.tokens(name) == wanted.tokens(name)
