"""What a deployment of tests and benchmarks is started with, and what is said if it does not."""

from pathlib import Path

import pytest

from loadtest.deployment import Deployment, environment, processes_of
from shared.errors import PeerUnavailable


def test_a_deployment_gets_none_of_the_user_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_HTTP_PORT", "80")
    monkeypatch.setenv("UNRELATED", "kept")
    found = environment({"SYMPHONY_KV_BYTES": "1"})
    assert {name for name in found if name.startswith("SYMPHONY_")} == {"SYMPHONY_KV_BYTES"}
    assert found["UNRELATED"] == "kept"


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "data", "--emulate", "nonsense")
    with pytest.raises(PeerUnavailable, match=r"ended before it was ready: .*nonsense"), deployment:
        pass
    assert not processes_of(tmp_path)
