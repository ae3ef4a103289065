"""The scheduler's settings."""

import pytest

from services.scheduler.config import SchedulerConfig
from services.scheduler.core import Limits
from services.scheduler.core.batching.batcher import WindowBatcher
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rules import make_rules
from shared.errors import ConfigError
from shared.runtime.config import load_config


def test_the_constants_are_the_core_s() -> None:
    limits = load_config(SchedulerConfig, {}).limits()
    assert limits == Limits()


def test_seconds_become_the_core_s_nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_SCHEDULER_PLACEMENT_WAIT_S", "0.5")
    assert load_config(SchedulerConfig).limits().placement_wait_ns == 500_000_000


def test_an_unknown_policy_ends_the_start_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_SCHEDULER_POLICY", "best")
    with pytest.raises(ConfigError, match=r"SYMPHONY_SCHEDULER_POLICY='best'.*balance"):
        load_config(SchedulerConfig)


@pytest.mark.parametrize("gone", ["recompute", "sticky", "migrate", "remote", "random"])
def test_a_policy_of_load_tests_alone_ends_the_start(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_SCHEDULER_POLICY", gone)
    with pytest.raises(ConfigError, match=f"SYMPHONY_SCHEDULER_POLICY='{gone}'.*cost, balance"):
        load_config(SchedulerConfig)


def test_a_placement_policy_is_a_name_or_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "services.scheduler.core.placement.balance:Balance"
    for policy in ("cost", "balance", own):
        monkeypatch.setenv("SYMPHONY_SCHEDULER_POLICY", policy)
        assert load_config(SchedulerConfig).scheduler_policy == policy
    for policy, reason in (("no.where:Policy", "no"), ("builtins:str", "makes a str")):
        monkeypatch.setenv("SYMPHONY_SCHEDULER_POLICY", policy)
        with pytest.raises(ConfigError, match=f"SYMPHONY_SCHEDULER_POLICY=.*{reason}"):
            load_config(SchedulerConfig)


class Own(WindowBatcher):
    """A batch policy by its path."""

    def __init__(self, delays: Delays) -> None:
        super().__init__(make_rules("eager"), delays)


OWN = f"{__name__}:Own"


def test_a_batch_policy_is_a_name_or_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for policy in ("timeout:5", OWN):
        monkeypatch.setenv("SYMPHONY_BATCH_POLICY", policy)
        assert load_config(SchedulerConfig).batch_policy == policy
    monkeypatch.setenv("SYMPHONY_BATCH_POLICY", "nexus")
    with pytest.raises(ConfigError, match=r"SYMPHONY_BATCH_POLICY='nexus'.*steady, deferred"):
        load_config(SchedulerConfig)


def test_a_shard_s_batch_policy_is_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_SCHEDULER_ROLE", "shard")
    monkeypatch.setenv("SYMPHONY_BATCH_POLICY", OWN)
    with pytest.raises(ConfigError, match=r"SYMPHONY_BATCH_POLICY='tests.*steady, deferred"):
        load_config(SchedulerConfig)


def test_a_lease_shorter_than_three_beats_is_refused() -> None:
    given = {"SYMPHONY_DEVELOPMENT": '{"scheduler_lease_beat_ms": 700}'}
    why = r"SYMPHONY_DEVELOPMENT: scheduler_lease_ttl_ms='2000'.*three times"
    with pytest.raises(ConfigError, match=why):
        load_config(SchedulerConfig, given)


def test_milliseconds_of_the_lease_become_nanoseconds() -> None:
    times = load_config(SchedulerConfig).lease_times()
    assert (times.beat_ns, times.ttl_ns) == (250_000_000, 2_000_000_000)
