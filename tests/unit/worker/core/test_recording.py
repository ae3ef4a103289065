"""A step is data: what one executor ran, another runs from a file, and chooses the same tokens."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from loadtest.bench.recording import read_steps, write_step
from services.worker.core.step import Sampled, StepPlan, StepResult
from services.worker.device.base.executor import Finished
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.model import load_model
from services.worker.models.demo_model import make_demo_model
from shared.errors import InvalidRequest
from tests.unit.worker.device.driver import Driver, make_core

NUM_PAGES = 400


class Recorder(TorchExecutor):
    """Writes down every step that it runs."""

    file: BytesIO

    def launch(self, plan: StepPlan) -> Finished:
        result = super().launch(plan).outcome
        write_step(self.file, plan, result)
        return Finished(result)


def recorded(model: LoadedModel) -> bytes:
    """Some turns that share a prefix, are cut into chunks, and want all there is to want."""
    executor = Recorder(model, "m", NUM_PAGES, lambda _: None)
    executor.file = BytesIO()
    driver = Driver(make_core(executor, prefill_tokens_max=48), executor)
    shared = list(range(1, 130))
    driver.submit("greedy", [*shared, 7])
    driver.submit("scored", [9] * 70, prompt_logprobs=2, logprobs=3)
    driver.run()
    driver.submit("drawn", [*shared, 8], temperature=1.0, seed=5, top_k=40)
    driver.submit("penalized", [3, 4, 5], repetition_penalty=1.3, presence_penalty=0.5)
    driver.run()
    executor.close()
    return executor.file.getvalue()


def test_a_recording_runs_again_and_gives_the_same_tokens(tmp_path: Path) -> None:
    model = load_model(str(make_demo_model(tmp_path / "demo")), "cpu", "auto")
    steps = list(read_steps(recorded(model).splitlines()))
    assert len(steps) > 15 and any(step.plan.scoring for step in steps)
    executor = TorchExecutor(model, "m", NUM_PAGES, lambda _: None)
    for step in steps:
        sampled = executor.launch(step.plan).outcome.sampled
        assert [None if each is None else each.token for each in sampled] == step.tokens
    executor.close()


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    model = load_model(str(make_demo_model(tmp_path / "demo")), "cpu", "auto")
    for line in recorded(model).splitlines(keepends=True):
        (step,) = read_steps([line])
        assert step.plan.slots.dtype == step.plan.entries.pages.dtype == np.int32
        file = BytesIO()
        sampled = [None if token is None else Sampled(token) for token in step.tokens]
        write_step(file, step.plan, StepResult(sampled))
        assert file.getvalue() == line


@pytest.mark.parametrize("line", [b"no json", b"{}", b'{"plan": {}, "tokens": []}', b"[1]"])
def test_a_line_that_is_no_step_is_named(line: bytes) -> None:
    with pytest.raises(InvalidRequest, match="line 1 holds no step"):
        list(read_steps([line]))
