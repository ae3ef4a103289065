"""Each worker gets a GPU of its own, where there are any."""

from pathlib import Path

import pytest

from cli.start.gpus import VISIBLE, gpus_of_workers, visible_gpus
from cli.start.options import DeploymentOptions
from cli.start.plan import plan_deployment
from shared.errors import ConfigError


def driver(folder: Path, says: str) -> dict[str, str]:
    """An environment whose `nvidia-smi` runs this script."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{says}\n")
    tool.chmod(0o755)
    return {"PATH": str(folder)}


def test_the_driver_is_asked_unless_somebody_chose(tmp_path: Path) -> None:
    environment = driver(tmp_path, "echo GPU-a; echo GPU-b")
    assert visible_gpus(environment) == ["GPU-a", "GPU-b"]
    assert visible_gpus({**environment, VISIBLE: "3, 1"}) == ["3", "1"]
    assert visible_gpus({**environment, VISIBLE: ""}) == []


def test_without_a_driver_that_answers_there_are_none(tmp_path: Path) -> None:
    assert visible_gpus({"PATH": str(tmp_path)}) == []
    assert visible_gpus(driver(tmp_path, "exit 9")) == []


def test_more_workers_than_gpus_are_refused() -> None:
    there = {VISIBLE: "0,1"}
    assert gpus_of_workers(2, there) == ["0", "1"]
    with pytest.raises(ConfigError, match=r"^--workers 3: there are 2 GPUs, and each worker"):
        gpus_of_workers(3, there)
    with pytest.raises(ConfigError, match=r"^--hosts 2 --workers 2: there are 2 GPUs"):
        gpus_of_workers(2, there, 2)
    assert gpus_of_workers(1, there, 2) == ["0", "1"]
    assert gpus_of_workers(3, {**there, "SYMPHONY_DEVICE": "cpu"}) == []
    assert gpus_of_workers(3, {VISIBLE: ""}) == []


def test_workers_see_one_gpu_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str | None] = {}

    def record(command: list[str], *, log_path: Path, env: dict[str, str]) -> None:
        if command[-1] == "services.worker":
            seen[env["SYMPHONY_INSTANCE"]] = env.get(VISIBLE)

    monkeypatch.setattr("cli.start.plan.start_child", record)
    there = {VISIBLE: "4,7"}
    for child in plan_deployment(
        DeploymentOptions(data_dir=tmp_path, num_workers=2), 1, there
    ).services:
        child.start()
    assert seen == {"0": "4", "1": "7"}
    emulated = DeploymentOptions(data_dir=tmp_path, num_workers=3, emulate="zero")
    for child in plan_deployment(emulated, 1, there).services:
        child.start()
    assert seen == {"0": "4,7", "1": "4,7", "2": "4,7"}
