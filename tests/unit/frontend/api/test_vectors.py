"""Vectors as answers hold them, read back as clients do it."""

import base64
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.api.bodies.oneshot import EmbeddingBody
from services.frontend.api.oneshot.endpoints import cosine
from services.frontend.api.oneshot.vectors import packed, scaled, written
from shared.errors import InvalidRequest

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
floats = st.floats(-60_000, 60_000, width=32)


def body(**fields: Any) -> EmbeddingBody:
    return EmbeddingBody(model="m", input="a", **fields)


@given(st.lists(floats, min_size=1, max_size=8), st.sampled_from([*TYPES]), st.booleans())
def test_packed_numbers_are_torchs(values: list[float], dtype: str, is_big: bool) -> None:
    text = packed(np.array(values, np.float32), dtype, "big" if is_big else "little")
    raw = np.frombuffer(base64.b64decode(text), "u2" if dtype != "float32" else "u4")
    made = torch.frombuffer(bytearray((raw.byteswap() if is_big else raw).tobytes()),
                            dtype=TYPES[dtype])  # fmt: skip
    assert torch.equal(made, torch.tensor(values, dtype=torch.float32).to(TYPES[dtype]))


@pytest.mark.parametrize(("dtype", "value"), [("float16", 70_000.0), ("bfloat16", 3.4e38)])
def test_what_does_not_fit_is_refused(dtype: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        packed(np.array([value], np.float32), dtype)
    assert caught.value.param == "embed_dtype"


def test_numbers_are_written_as_asked_for() -> None:
    values = np.array([3, 4], np.float32)
    assert written(values, body(embed_dtype="float16")) is values, "of base64 alone"
    assert np.frombuffer(base64.b64decode(written(values, body(encoding_format="base64"))),
                         "=f4").tolist() == [3, 4]  # fmt: skip
    for name in ("normalize", "use_activation"):
        assert np.allclose(scaled(values, body(**{name: True})), [0.6, 0.8])
    assert scaled(values, body()) is values


def test_cosines() -> None:
    assert cosine(np.array([1, 0], np.float32), np.array([0, 2], np.float32)) == 0
    assert cosine(np.array([1, 0], np.float32), np.zeros(2, np.float32)) == 0
