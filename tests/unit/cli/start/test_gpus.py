"""Each worker gets a GPU of its own, where there are any."""

import shutil
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


LISTED = """\
GPU 0: NVIDIA H200 (UUID: GPU-0f3a-1)
GPU 1: NVIDIA H200 (UUID: GPU-2b7c-2)
"""
DIVIDED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0f3a-1)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7a8-1)
  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-0f3a-1/9/0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2b7c-2)
"""


def listing(folder: Path, text: str) -> dict[str, str]:
    (folder / "listed").write_bytes(text.encode(errors="surrogateescape"))
    cat = shutil.which("cat")
    return driver(folder, f'[ "$*" = -L ] && exec {cat} {folder}/listed')


def test_the_driver_is_asked_unless_the_user_chose(tmp_path: Path) -> None:
    environment = listing(tmp_path, LISTED)
    assert visible_gpus(environment) == ["GPU-0f3a-1", "GPU-2b7c-2"]
    assert gpus_of_workers(2, environment) == ["GPU-0f3a-1", "GPU-2b7c-2"]
    with pytest.raises(ConfigError, match=r"^--workers 3: there are 2 GPUs"):
        gpus_of_workers(3, environment)
    assert gpus_of_workers(2, {**environment, VISIBLE: "3, 1,2"}) == ["3", "1"]


def test_of_a_divided_gpu_its_instances_are_used(tmp_path: Path) -> None:
    environment = listing(tmp_path, DIVIDED)
    assert visible_gpus(environment) == ["MIG-c7a8-1", "MIG-GPU-0f3a-1/9/0", "GPU-2b7c-2"]


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["0"]),
        (" 0 , 1,", ["0", "1"]),
        ("0,0", ["0", "0"]),
        ("GPU-0f3a-1,MIG-c7a8-1", ["GPU-0f3a-1", "MIG-c7a8-1"]),
        ("MIG-GPU-0f3a-1/9/0", ["MIG-GPU-0f3a-1/9/0"]),
    ],
)
def test_a_choice_is_read_as_cuda_reads_it(chosen: str, found: list[str]) -> None:
    assert visible_gpus({VISIBLE: chosen}) == found


def test_without_a_driver_there_are_none(tmp_path: Path) -> None:
    assert visible_gpus({"PATH": str(tmp_path)}) == []


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "GPU 0: (UUID:\n", "\udcff\udc80\x00(UUID: x)\n" * 999]
)
def test_nonsense_names_no_gpus(tmp_path: Path, text: str) -> None:
    environment = listing(tmp_path, text)
    assert visible_gpus(environment) == []
    assert gpus_of_workers(2, environment) == []


@pytest.mark.parametrize("script", ["exit 9", "echo '(UUID: GPU-1)'; exit 1", "kill -9 $$"])
def test_a_driver_that_fails_names_no_gpus(tmp_path: Path, script: str) -> None:
    assert gpus_of_workers(2, driver(tmp_path, script)) == []


def test_a_tool_that_is_no_program_names_no_gpus(tmp_path: Path) -> None:
    environment = driver(tmp_path, "")
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF")
    assert visible_gpus(environment) == []


def test_several_workers_do_not_start_when_the_driver_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.start.gpus.PATIENCE_S", 0.1)
    environment = driver(tmp_path, f"echo x >> {tmp_path}/asked; exec {shutil.which('sleep')} 60")
    with pytest.raises(ConfigError, match=r"nvidia-smi does not answer within 0\.1 s"):
        gpus_of_workers(2, environment)
    assert gpus_of_workers(1, environment) == [], "alone it uses what it finds"
    assert gpus_of_workers(2, {**environment, VISIBLE: "0,1"}) == ["0", "1"]
    assert gpus_of_workers(2, {**environment, "SYMPHONY_DEVICE": "cpu"}) == []
    assert (tmp_path / "asked").read_text() == "x\n", "it is asked once"


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
