"""What a model takes of memory, and that closing it gives that back."""

import gc
import weakref
from pathlib import Path

import torch

from services.worker.config import WorkerConfig
from services.worker.load_oneshot import make_oneshot
from services.worker.oneshot.memory import LiveBytes, weights_bytes
from services.worker.oneshot.torch_model import TorchOneshot
from tests.unit.worker.oneshot.models import make_classifier

MB = 1 << 20


def test_bytes_that_live_at_one_time_are_counted() -> None:
    layer = torch.nn.Linear(512, 512, bias=False)  # 1 MiB
    assert weights_bytes(layer) == MB
    with torch.inference_mode(), LiveBytes(layer) as live:
        kept = torch.zeros(MB // 4)
        for _ in range(3):
            layer(kept.view(-1, 512))  # 1 MiB more, gone at once
        layer.weight.t()  # a view of a weight is none
    assert live.peak == 2 * MB


def test_a_real_model_names_its_bytes_and_frees_them(tmp_path: Path) -> None:
    source = str(make_classifier(tmp_path / "m"))
    config = WorkerConfig(  # type: ignore[call-arg]
        data_dir=tmp_path, oneshot_profile_s=0.01, oneshot_batch_max=4, oneshot_bytes=MB
    )
    model = make_oneshot(config, "cpu", "m", source, "classify")
    assert isinstance(model, TorchOneshot)
    assert model.card.static_bytes > 50_000
    one, four = model.peak_bytes(40, 1), model.peak_bytes(40, 4)
    assert 3.5 * one < four == model.card.dynamic_bytes < 4.5 * one
    again = make_oneshot(config, "cpu", "m", source, "classify", model.card)
    assert again.card == model.card
    weights = weakref.ref(model._model.module)
    gc.disable()  # freed memory is not to wait for it
    try:
        model.close()
        assert weights() is None
    finally:
        gc.enable()
