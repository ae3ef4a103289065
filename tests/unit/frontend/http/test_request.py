"""Headers whose values are checked."""

import pytest

from services.frontend.http.request import slo_tpot_ms, slo_ttft_ms
from shared.errors import InvalidRequest


@pytest.mark.parametrize(("value", "target_ms"), [(None, None), ("250", 250.0), ("1e3", 1000.0)])
def test_targets_for_tokens(value: str | None, target_ms: float | None) -> None:
    assert slo_ttft_ms(value) == slo_tpot_ms(value) == target_ms


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e999", "soon", "5 ms"])
def test_targets_that_are_none(value: str) -> None:
    for read, name in ((slo_ttft_ms, "X-SLO-TTFT-Ms"), (slo_tpot_ms, "X-SLO-TPOT-Ms")):
        with pytest.raises(InvalidRequest) as caught:
            read(value)
        assert caught.value.param == name
