"""What a worker makes of its settings."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.worker.config import WorkerConfig
from services.worker.device.gpu import cuda
from services.worker.load import _make_stream_crew


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
