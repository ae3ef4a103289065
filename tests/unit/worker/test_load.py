"""What a worker makes of its settings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.worker.config import WorkerConfig
from services.worker.device.gpu import cuda
from services.worker.load import _make_stream_crew, check_ranks, make_real, plan_models
from services.worker.models.demo_model import make_demo_model
from shared.errors import ConfigError
from shared.ids import HostId
from tests.unit.worker.oneshot.models import make_embedder, settings


@pytest.mark.parametrize("lora_start", ["auto", "stream", "wait", "assist"])
def test_helpers_start_beside_a_gpu_only_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, lora_start: Any
) -> None:
    made: list[object] = []
    monkeypatch.setattr(cuda, "cuda_crew", lambda *given: made.append(given))
    model = SimpleNamespace(lora=object(), stored_form=None, dtype=None, lora_sites=[], device=None)
    config = WorkerConfig(host_id="h", lora_start=lora_start)  # type: ignore[call-arg, arg-type]
    _make_stream_crew(config, cast(Any, model))
    assert len(made) == (lora_start == "assist")


@pytest.mark.parametrize(
    ("changes", "device", "why"),
    [
        ({"engine": "vllm"}, "cpu", "vLLM takes `tensor_parallel_size`"),
        ({}, "cuda", "ranks are on the CPU only"),
        ({"emulate": "small"}, "cpu", "SYMPHONY_EMULATE='small'"),
        ({"layers": "invariant"}, "cpu", "SYMPHONY_LAYERS='invariant'"),
        ({"kv_stored_dtype": "int8"}, "cpu", "SYMPHONY_KV_STORED_DTYPE='int8'"),
    ],
)
def test_what_does_not_go_with_ranks_is_refused_by_name(
    changes: dict[str, Any], device: str, why: str
) -> None:
    config = WorkerConfig(host_id=HostId("h"), tensor_parallel=2, **changes)
    with pytest.raises(ConfigError, match=f"SYMPHONY_TENSOR_PARALLEL=2.*{why}"):
        check_ranks(config, device)
    check_ranks(config.model_copy(update={"tensor_parallel": 1}), device)
    others = {name: WorkerConfig.model_fields[name].default for name in changes}
    check_ranks(config.model_copy(update=others), "cpu")


def test_ranks_that_cannot_divide_a_model_are_refused_by_name(tmp_path: Path) -> None:
    source = make_demo_model(tmp_path / "demo")
    config = settings(device="cpu", tensor_parallel=3)
    with pytest.raises(ConfigError, match=r"SYMPHONY_TENSOR_PARALLEL=3: layer 0: 8 heads cannot"):
        make_real(config, "demo", str(source), lambda _: None)


def test_ranks_compute_no_oneshot_models(tmp_path: Path) -> None:
    source = make_embedder(tmp_path / "bert")
    config = settings(models=[str(source)], tensor_parallel=2)
    with pytest.raises(ConfigError, match="PARALLEL=2 generates only: bert is for 'embed'"):
        plan_models(config)
    plan_models(config.model_copy(update={"tensor_parallel": 1}))
