"""What a process says of its start while it lasts, and what its log says of it afterwards."""

import logging

import pytest

from shared.runtime.clock import ManualClock
from shared.runtime.stages import STAGES, StartStages, count_text, stage_text
from shared.wire.messages import StartStage


def test_a_stage_is_there_while_it_lasts_and_logged_with_bytes_and_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    stages = StartStages(clock)
    with caplog.at_level(logging.INFO):
        with stages.stage("load", "llama", 100):
            clock.advance(1_500_000_000)
            stages.count(60)
            assert stages.now() == StartStage(
                name="load", model="llama", seconds=1.5, num_done=60, num_total=100
            )
            stages.count(40)
        assert stages.now() is None
        stages.count(5)  # of a thread that is late
        with pytest.raises(OSError, match="full"), stages.stage("compile"):
            raise OSError("full")
    assert stages.now() is None
    begun, ended, second = caplog.records
    assert [each.getMessage() for each in (begun, ended, second)] == [
        "load begins", "load", "compile begins",
    ]  # fmt: skip
    assert ended.__dict__ | {"bytes": 100, "seconds": 1.5, "model": "llama"} == ended.__dict__


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_is_words(name: str) -> None:
    assert stage_text(StartStage(name=name)) == STAGES[name]
    assert stage_text(StartStage(name=name, model="llama")).endswith(" llama")
    assert not count_text(StartStage(name=name, num_done=3))


def test_a_stage_of_a_later_release_is_shown_by_its_name() -> None:
    assert stage_text(StartStage(name="tune", model="m")) == "tune of m"
