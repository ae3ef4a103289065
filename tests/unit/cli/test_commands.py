"""The thin commands: status, doctor, checks."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli import checks
from cli.base.runfile import RunningService, RunState
from cli.inspection import model_report
from cli.inspection.description import describe
from cli.inspection.doctor import Finding, examine
from cli.inspection.snapshot import Snapshot, is_alive
from cli.inspection.status import render
from cli.main import app
from cli.vllm_environment import describe_environment
from loadtest.deployment import symphony
from services.worker.models.demo_model import make_demo_model
from shared.ids import HostId, WorkerId
from shared.wire.messages import KvPool, KvStats, SchedulerStatus, StartStage, WorkerStatus

runner = CliRunner()


@pytest.mark.parametrize("line", ["", "up --help", "up --nonsense", "bench http --concurrency x"])
def test_usage_names_the_command_that_people_type(line: str) -> None:
    done = symphony(*line.split())
    assert f"sage: symphony {line.partition(' --')[0]}".strip() in done.stdout + done.stderr
    assert "python" not in done.stdout + done.stderr


def test_status_tells_of_services_workers_and_tiers() -> None:
    run = RunState(
        pid=1, state="ready", url="http://u", nats_url="", redis_url="", host_id="h", num_workers=1,
        services=[
            RunningService(name="nats", pid=1),
            RunningService(name="worker-0", pid=1),
            RunningService(name="frontend", pid=2**22 + 1),
        ],
    )  # fmt: skip
    worker = WorkerStatus(worker_id=WorkerId("w"), host_id=HostId("h"), state="ready", models=["m"])
    snapshot = Snapshot(
        states={1: "ready"},
        scheduler=SchedulerStatus(workers=[worker]),
        stores=[KvStats(num_sessions=7, disk_blocks=3, disk_bytes_max=1 << 30)],
        pools=[KvPool(model="m[a]", num_blocks=640)],
    )
    report = describe(run, snapshot)
    assert [service["state"] for service in report["services"]] == ["running", "ready", "dead"]
    assert report["sessions"] == 7
    stage = StartStage(name="load", model="m", seconds=3.2, num_done=2_000_000, num_total=9_000_000)
    starting = describe(run, replace(snapshot, states={}, stages={1: stage}))
    assert starting["services"][1]["stage"] == "loading m, 2 of 9 MB (3 s)"
    assert report["tiers"]["disk"] == {
        "blocks": 3, "bytes": 0, "bytes_max": 1 << 30, "pages_corrupt": 0,
    }  # fmt: skip
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render(report))
    assert "7 sessions" in capture.get() and "disk 0 of 1,024 MiB" in capture.get()
    assert "m[a]                           40,960 (10)            -     -" in capture.get()
    assert describe(run, None)["services"][1]["state"] == "starting"


def test_status_says_what_is_missing() -> None:
    run = RunState(
        pid=1, state="ready", url="http://u", nats_url="", redis_url="redis://[::1]:2/0",
        host_id="h", num_workers=1, services=[RunningService(name="nats", pid=1)],
        names=["nats", "tracker"],
    )  # fmt: skip
    snapshot = Snapshot(states={}, scheduler=None, stores=[], redis_trouble="Connection refused")
    report = describe(run, snapshot)
    assert report["state"] == "degraded"
    assert len(report["reasons"]) == 2
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(report))
    for reason in ("degraded", *report["reasons"]):
        assert reason in capture.get()


def test_a_process_that_was_not_waited_for_is_not_alive() -> None:
    import subprocess

    with subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()  # end of file: it is ending
        while is_alive(child.pid):
            pass


def test_doctor_finds_this_machine_fit(tmp_path: Path) -> None:
    findings = {finding.subject: finding for finding in examine(tmp_path, describe_environment)}
    assert findings["nats-server"].is_fine
    assert findings["redis-server"].is_fine
    assert findings["data folder"].is_fine
    assert not {
        f.subject for f in examine(Path("/proc/none"), describe_environment) if not f.is_fine
    } ^ {"data folder"}


def test_doctor_tells_what_adapters_may_target_from_the_config_alone(tmp_path: Path) -> None:
    def told(model: str) -> list[Any]:
        words = ["doctor", "--json", "--data-dir", str(tmp_path), "--model", model]
        findings = json.loads(runner.invoke(app, words).stdout)
        return [f for f in findings if f["subject"] == "adapters"]

    (unknown,) = told("demo")
    assert unknown["is_fine"] and "`up` fetches it" in unknown["text"]
    assert not (tmp_path / "models").exists()
    demo = make_demo_model(tmp_path / "models" / "symphony-demo")
    for file in demo.iterdir():
        if file.name != "config.json":
            file.unlink()
    (known,) = told("demo")
    assert known == {
        "subject": "adapters", "is_fine": True,
        "text": "on demo: self_attn.q_proj 256 x 256, self_attn.k_proj 256 x 128, "
        "self_attn.v_proj 256 x 128, self_attn.o_proj 256 x 256, mlp.gate_proj 256 x 704, "
        "mlp.up_proj 256 x 704, mlp.down_proj 704 x 256, in each of 6 layers; lm_head 256 x 260; "
        "ranks up to 256",
    }  # fmt: skip
    config = json.loads((demo / "config.json").read_text())
    change = {"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}
    (demo / "config.json").write_text(json.dumps(config | change))
    assert "it takes none, as a one-shot model" in told("demo")[0]["text"]
    (demo / "config.json").write_text("{")
    assert [finding["is_fine"] for finding in told("demo") + told("./none")] == [False, False]


def test_without_torch_doctor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_demo_model(tmp_path / "models" / "symphony-demo")
    monkeypatch.setattr(model_report, "find_spec", lambda _: None)
    *_, adapters, kv, model = examine(tmp_path, describe_environment, models=["demo"])
    said = "not known without torch, which `up` installs"
    assert adapters == Finding("adapters", True, f"on demo: {said}")
    assert kv == Finding("KV cache", True, f"demo: {said}")
    assert model == Finding("model", True, f"demo: {said}")


@pytest.mark.parametrize(
    ("settings", "held"),
    [
        ({}, (2730, 1365, 2730)),
        ({"KV_STORED_DTYPE": "int8"}, (2730, 5140, 10280)),
        ({"DTYPE": "bfloat16", "KV_BYTES": str(384 << 10)}, (2, 2730, 5461)),
    ],
)
def test_doctor_says_what_each_tier_holds_of_a_model(
    settings: dict[str, str], held: tuple[int, int, int], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    make_demo_model(tmp_path / "models" / "symphony-demo")  # 384 KiB a block
    sizes = {"ARENA_BYTES": str(512 << 20), "DISK_BYTES_MAX": str(1 << 30)}
    for name, value in (sizes | settings).items():
        monkeypatch.setenv(f"SYMPHONY_{name}", value)
    findings = examine(tmp_path, describe_environment, models=["demo"])
    machine, model = (each for each in findings if each.subject == "KV cache")
    assert (machine.text, machine.is_fine) == ("0.5 GiB of memory, 1.0 GiB of disk", True)
    pool, arena, disk = (f"{num * 64:,} ({num // 63:,})" for num in held)
    assert model.text == (
        f"demo: tokens (sessions of 4,000) in KV pool {pool}, host memory {arena}, disk {disk}"
    )


def test_doctor_says_that_there_is_no_room_for_an_arena(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> SimpleNamespace:
        return SimpleNamespace(total=1 << 30, free=1 << 20)

    monkeypatch.setattr("services.kvstore.room.shutil", SimpleNamespace(disk_usage=full))
    (finding,) = (f for f in examine(tmp_path, describe_environment) if f.subject == "KV cache")
    assert not finding.is_fine and "SYMPHONY_ARENA_DIR" in finding.text


def test_doctor_says_whether_a_model_is_computed_right(tmp_path: Path) -> None:
    def said(**changes: object) -> tuple[int, Finding]:
        demo = make_demo_model(tmp_path / "models" / "symphony-demo")
        config = json.loads((demo / "config.json").read_text())
        (demo / "config.json").write_text(json.dumps(config | changes))
        words = ["doctor", "--json", "--data-dir", str(tmp_path), "--model", "demo"]
        result = runner.invoke(app, words)
        (finding,) = (f for f in json.loads(result.stdout) if f["subject"] == "model")
        return result.exit_code, Finding(**finding)

    code, found = said()
    assert (code, found.is_fine) == (0, True)
    assert found.text.startswith("demo: llama, computed as transformers computes it")
    code, found = said(model_type="diffllama", architectures=["DiffLlamaForCausalLM"])
    assert (code, found.is_fine) == (1, False)
    assert found.text == (
        "demo cannot be served: diffllama (DiffLlamaForCausalLM): layer 0 calls attention twice in "
        "one pass"
    )


def test_checks_run_every_step_and_report_the_first_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {"ruff": 0, "mypy": 3, "pytest": 1}
    ran: list[str] = []

    def run(command: tuple[str, ...]) -> tuple[int, float]:
        ran.append(command[0])
        return codes[command[0]], 0.0

    monkeypatch.setattr(checks, "_run", run)
    monkeypatch.setattr(checks, "_run_silently", lambda command: ("7 errors\n", run(command)))
    assert checks.run_checks([]) == 3
    assert sorted(ran) == ["mypy", "pytest", "ruff", "ruff"]
    assert ran[:2] == ["ruff", "ruff"], "what is fast comes first"
    said = capsys.readouterr().out
    assert "7 errors" in said and re.search(r"types +failed \(status 3\)", said)
    assert checks.run_checks(["-k", "x"]) == 1
    assert ran[4:] == ["pytest"]


def test_a_check_beside_another_is_heard_of_when_it_fails() -> None:
    said, (code, _) = checks._run_silently(("mypy", "--no-such-option"))
    assert code == 2 and "--no-such-option" in said


def test_without_a_deployment_commands_fail_in_one_line(tmp_path: Path) -> None:
    for name in ("status", "down", "chat"):
        result = runner.invoke(app, [name, "--data-dir", str(tmp_path)])
        assert result.exit_code == 1
        assert result.stderr.startswith("symphony: nothing runs on")
