"""The worker's settings."""

import pytest

from services.worker.config import WorkerConfig
from shared.errors import ConfigError
from shared.runtime.config import load_config

ONESHOT_SLO = "SYMPHONY_ONESHOT_SLO_MS"


@pytest.mark.parametrize("value", ["3600001", "inf", "nan", "-1"])
def test_a_target_that_no_request_may_name_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(ONESHOT_SLO, value)
    with pytest.raises(ConfigError, match=f"{ONESHOT_SLO}='{value}'"):
        load_config(WorkerConfig)


def test_the_longest_target_of_a_request_may_be_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ONESHOT_SLO, "3600000")
    assert load_config(WorkerConfig).oneshot_slo_ms == 3_600_000


def test_models_on_order_need_one_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_ONESHOT_BYTES", "1000")
    assert load_config(WorkerConfig).oneshot_bytes == 1000
    monkeypatch.setenv("SYMPHONY_SCHEDULER_SHARDS", "2")
    with pytest.raises(ConfigError, match="SYMPHONY_ONESHOT_BYTES 1000 needs"):
        load_config(WorkerConfig)
