"""What a deployment of tests and benchmarks is started with."""

import pytest

from loadtest.deployment import environment


def test_a_deployment_gets_none_of_the_user_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMPHONY_HTTP_PORT", "80")
    monkeypatch.setenv("UNRELATED", "kept")
    found = environment({"SYMPHONY_KV_BYTES": "1"})
    assert {name for name in found if name.startswith("SYMPHONY_")} == {"SYMPHONY_KV_BYTES"}
    assert found["UNRELATED"] == "kept"
