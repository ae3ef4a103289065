"""The scheduler's settings."""

import pytest

from services.scheduler.config import SchedulerConfig
from shared.config import load_config
from shared.errors import ConfigError


def test_seconds_become_the_core_s_nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_SCHEDULER_DEAD_AFTER_S", "0.5")
    assert load_config(SchedulerConfig).limits().dead_after_ns == 500_000_000


def test_an_unknown_policy_ends_the_start_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_SCHEDULER_POLICY", "best")
    with pytest.raises(ConfigError, match=r"SYMPHONY_SCHEDULER_POLICY='best'.*balance"):
        load_config(SchedulerConfig)


def test_a_lease_shorter_than_three_beats_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_SCHEDULER_LEASE_BEAT_MS", "700")
    with pytest.raises(ConfigError, match=r"SYMPHONY_SCHEDULER_LEASE_TTL_MS='2000'.*three times"):
        load_config(SchedulerConfig)


def test_milliseconds_of_the_lease_become_nanoseconds() -> None:
    times = load_config(SchedulerConfig).lease_times()
    assert (times.beat_ns, times.ttl_ns) == (250_000_000, 2_000_000_000)
