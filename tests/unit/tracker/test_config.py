"""The tracker's settings."""

import pytest

from services.tracker.config import TrackerConfig
from shared.config import load_config
from shared.errors import ConfigError


def test_seconds_become_the_core_s_nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_TRACKER_TTL_S", "2")
    assert load_config(TrackerConfig).limits().ttl_ns == 2_000_000_000


def test_a_wrong_value_ends_the_start_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_TRACKER_TTL_S", "0")
    with pytest.raises(ConfigError, match="SYMPHONY_TRACKER_TTL_S='0'"):
        load_config(TrackerConfig)
