"""What a model's files advise reaches its card; what no request may ask for does not."""

from pathlib import Path

import pytest

from services.worker.device.model import load_model
from services.worker.models.demo_model import make_demo_model
from shared.wire.messages import SamplingDefaults


@pytest.mark.parametrize(
    ("advice", "taken"),
    [
        ("", SamplingDefaults()),
        ('"temperature": 0.2, "top_p": 0.9, ', SamplingDefaults(temperature=0.2, top_p=0.9)),
        ('"top_k": 40, "min_p": 0.1, ', SamplingDefaults(top_k=40, min_p=0.1)),
        ('"repetition_penalty": 1.5, ', SamplingDefaults(repetition_penalty=1.5)),
        ('"temperature": 1e-40, "top_p": 0.0, "top_k": -3, ', SamplingDefaults()),
    ],
)
def test_advice_of_a_model(tmp_path: Path, advice: str, taken: SamplingDefaults) -> None:
    folder = make_demo_model(tmp_path / "demo")
    (folder / "generation_config.json").write_text(f'{{{advice}"eos_token_id": [256, 258]}}')
    model = load_model(str(folder), "cpu", "auto")
    assert model.sampling == taken
    assert model.end_token_ids == {256, 258}
