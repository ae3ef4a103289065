"""Headers whose values are checked."""

import pytest

from services.frontend.request import slo_ttft_ms
from shared.errors import InvalidRequest


@pytest.mark.parametrize(("value", "target_ms"), [(None, None), ("250", 250.0), ("1e3", 1000.0)])
def test_targets_for_the_first_token(value: str | None, target_ms: float | None) -> None:
    assert slo_ttft_ms(value) == target_ms


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e999", "soon", "5 ms"])
def test_targets_that_are_none(value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        slo_ttft_ms(value)
    assert caught.value.param == "X-SLO-TTFT-Ms"
