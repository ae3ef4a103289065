"""The tracker's settings."""

import pytest

from services.tracker.config import TrackerConfig
from services.tracker.core import Limits
from shared.errors import ConfigError
from shared.runtime.config import load_config


def test_the_constants_are_the_core_s() -> None:
    assert load_config(TrackerConfig, {}).limits() == Limits()


def test_seconds_become_the_core_s_nanoseconds() -> None:
    assert TrackerConfig(tracker_slack_s=2.0).limits().slack_ns == 2_000_000_000


def test_a_wrong_value_ends_the_start_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_TRACKER_SHARDS", "0")
    with pytest.raises(ConfigError, match="SYMPHONY_TRACKER_SHARDS='0'"):
        load_config(TrackerConfig)


def test_a_shard_is_one_of_them_and_has_a_lease_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_TRACKER_SHARDS", "3")
    keys = []
    for shard in range(3):
        monkeypatch.setenv("SYMPHONY_TRACKER_SHARD", str(shard))
        keys.append(load_config(TrackerConfig).leadership)
    assert keys == [TrackerConfig().leadership, "tracker-1", "tracker-2"]
    monkeypatch.setenv("SYMPHONY_TRACKER_SHARD", "3")
    with pytest.raises(ConfigError, match=r"SYMPHONY_TRACKER_SHARD='3'.*below .*SHARDS \(3\)"):
        load_config(TrackerConfig)
    monkeypatch.setenv("SYMPHONY_TRACKER_SHARDS", "65")
    with pytest.raises(ConfigError, match="SYMPHONY_TRACKER_SHARDS='65'"):
        load_config(TrackerConfig)
