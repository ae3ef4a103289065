"""`symphony up`, `status`, `down` and what may go wrong with them, on emulated workers."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from safetensors.numpy import load_file, save_file

from cli.base.children import ROOT, free_port
from cli.base.runfile import read_run_state
from cli.bootstrap import STAMP, project_digest
from cli.inspection.description import describe
from cli.inspection.snapshot import look
from loadtest.deployment import UP_LOG, command, environment, processes_of, symphony, wait_until
from services.worker.models.demo_model import make_demo_model
from tests.cluster import Cluster

CHILDREN = ["nats", "redis", "kvstore", "scheduler", "tracker", "worker-0", "frontend"]


def assert_one_line(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert done.returncode == 1, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("symphony: "), done.stderr
    for word in words:
        assert word in lines[0]


def test_deployment_serves_survives_dead_processes_and_leaves_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path / "data", "--emulate", "zero") as cluster:
        _assert_it_serves(cluster)
        second = symphony("up", "--data-dir", str(cluster.data_dir), "--port", "0")
        assert_one_line(second, "already runs", cluster.url)

        for name in ("tracker", "redis"):
            cluster.wait_restarted(name, cluster.kill(name))
        cluster.wait_healthy()

        cluster.process.kill()
        cluster.process.wait()
        cluster.wait_gone()
        assert_one_line(symphony("status", "--data-dir", str(cluster.data_dir)), "nothing runs")
        left = Path(
            f"/dev/shm/symphony-{_host_id(cluster)}-2"
        )  # of a host that it has not any more
        left.mkdir(mode=0o700)
        cluster.start()
        assert not left.exists()
        assert cluster.status()["state"] == "ready"
        arena = [
            path for path in Path("/dev/shm").iterdir() if path.name.endswith(_host_id(cluster))
        ]
        assert len(arena) == 1
    assert cluster.process.returncode == 0
    assert not arena[0].exists()
    assert_one_line(symphony("status", "--data-dir", str(cluster.data_dir)), "nothing runs")


def test_detached_deployment_of_two_hosts_is_ready_on_return_and_stops_on_down(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / "data"
    up = symphony(
        "up", "--detach", "--emulate", "zero", "--true-pages", "--hosts", "2", "--workers", "1",
        "--port", str(free_port()), "--data-dir", str(data_dir),
        env={"SYMPHONY_KV_BYTES": str(1 << 24), "SYMPHONY_ARENA_BYTES": str(1 << 25)},
    )  # fmt: skip
    try:
        assert up.returncode == 0, up.stderr
        status = symphony("status", "--json", "--data-dir", str(data_dir))
        report = json.loads(status.stdout)
        assert report["url"] in up.stdout
        assert [worker["state"] for worker in report["workers"]] == ["ready", "ready"]
        assert httpx.get(f"{report['url']}/health").status_code == 200
        hosts = {host["host_id"]: host for host in report["hosts"]}
        assert len(hosts) == 2
        for name, host in hosts.items():
            assert host["has_kvstore"] and 0 < host["arena"]["bytes"] <= 1 << 25
            assert host["workers"] == [f"{name}-w0"]
        arenas = [Path(f"/dev/shm/symphony-{name}") for name in hosts]
        assert [path.name for folder in arenas for path in folder.glob("*.arena")] == [
            "kv-2048.arena"
        ] * 2
        _assert_a_chat_is_written_down(data_dir, report["url"])
        assert (data_dir / "kv").is_dir() and (data_dir / "hosts" / "1" / "kv").is_dir()
        log = data_dir / "logs" / "supervisor.log"
        said = log.read_text()
        second = symphony("up", "--detach", "--port", "0", "--data-dir", str(data_dir))
        assert_one_line(second, "already runs", report["url"])
        assert log.read_text() == said
    finally:
        down = symphony("down", "--data-dir", str(data_dir))
    assert down.returncode == 0, down.stderr
    assert not any(folder.exists() for folder in arenas)
    assert not processes_of(data_dir)
    assert_one_line(symphony("down", "--data-dir", str(data_dir)), "nothing runs")


def test_sigterm_during_the_start_stops_everything(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with subprocess.Popen(
        command("up", "--emulate", "zero", "--port", "0", "--data-dir", str(data_dir)),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        wait_until((data_dir / "logs" / "kvstore.log").exists, "the services are starting")
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(30) == 0
    assert not processes_of(data_dir)


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_port_in_use(tmp_path: Path, detach: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = symphony(
            "up", *detach, "--emulate", "zero", "--port", port, "--data-dir", str(tmp_path / "data")
        )
    assert_one_line(done, port, "in use")
    assert not processes_of(tmp_path)


def test_missing_model(tmp_path: Path) -> None:
    done = symphony("up", "--model", str(tmp_path / "none"), "--data-dir", str(tmp_path / "data"))
    assert_one_line(done, "no such folder", str(tmp_path / "none"))


def test_a_service_that_cannot_start_is_named_with_its_reason(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "kv").write_text("where the kvstore wants a folder")
    done = symphony(
        "up", "--detach", "--emulate", "zero", "--port", "0", "--data-dir", str(data_dir)
    )
    assert "symphony: starting kvstore" in done.stdout
    assert_one_line(done, "kvstore", "SYMPHONY_DATA_DIR", str(data_dir))
    assert not processes_of(tmp_path)


def test_a_model_that_lacks_a_weight_is_refused_by_its_name_before_anything_starts(
    tmp_path: Path,
) -> None:
    file = make_demo_model(tmp_path / "mine") / "model.safetensors"
    weights = load_file(file)
    del weights["lm_head.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    done = symphony(
        "up", "--detach", "--model", str(tmp_path / "mine"), "--port", "0",
        "--data-dir", str(tmp_path / "data"),
    )  # fmt: skip
    assert_one_line(done, "tensor lm_head.weight is missing in the checkpoint")
    assert "starting nats" not in done.stdout and not (tmp_path / "data" / "logs").exists()
    assert not processes_of(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        ((), {"SYMPHONY_SCHEDULER_POLICY": "nonsense"}, ("SYMPHONY_SCHEDULER_POLICY='nonsense'",)),
        (("--host", "0.0.0.0"), {}, ("SYMPHONY_HTTP_ADDRESS='0.0.0.0'", "SYMPHONY_API_KEYS_FILE")),
        (
            ("--nats-url", "nats://me:secret@127.0.0.1:1"),
            {},
            ("--nats-url", "nats://***@127.0.0.1:1", "Connection refused"),
        ),
        (("--model", "demo"), {}, ("--model demo", "--emulate")),
    ],
)
def test_what_is_known_to_be_wrong_is_refused_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], env: dict[str, str], words: tuple[str, ...]
) -> None:
    data_dir = tmp_path / "data"
    up = ("up", "--detach", "--emulate", "zero", "--port", "0", "--data-dir", str(data_dir))
    done = symphony(*up, *arguments, env=env)
    assert_one_line(done, *words)
    assert "starting nats" not in done.stdout
    assert not list(data_dir.glob("*"))
    assert not processes_of(tmp_path)


def test_a_service_started_alone_refuses_what_the_deployment_would(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.tracker"],
        env=environment({"SYMPHONY_TRACKER_SHAR": "5"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert_one_line(done, "SYMPHONY_TRACKER_SHAR='5'", "do you mean SYMPHONY_TRACKER_SHARD?")


def test_a_deployment_without_its_redis_starts_and_says_what_it_lacks(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    env = {"SYMPHONY_REDIS_URL": f"redis://:secret@{address}/0"}
    with Cluster(tmp_path / "data", "--emulate", "zero", settings=env) as cluster:
        expected = (
            f"Redis at redis://***@{address}/0 cannot be reached (Connection refused): "
            "conversations are not remembered"
        )
        report = cluster.status()
        assert (report["state"], report["reasons"]) == ("degraded", [expected])
        said = (cluster.logs / UP_LOG).read_text()
        assert f"symphony: degraded: {expected}\n" in said
        assert "secret" not in cluster.log_text()


def test_full_disk(tmp_path: Path) -> None:
    data_dir = tmp_path / "small"
    data_dir.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(data_dir)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount")
    try:
        done = symphony("up", "--emulate", "zero", "--port", "0", "--data-dir", str(data_dir))
    finally:
        subprocess.run(["umount", str(data_dir)], check=True)
    assert_one_line(done, "disk is full", str(data_dir))


def test_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = symphony("up", "--emulate", "zero", "--port", "0", "--data-dir", str(tmp_path / "file"))
    assert_one_line(done, str(tmp_path / "file"))


def test_unknown_profile_and_unknown_benchmark(tmp_path: Path) -> None:
    assert_one_line(symphony("up", "--emulate", "nonsense"), "nonsense", "a100-llama3-8b")
    assert_one_line(symphony("bench", "nonsense"), "nonsense", "resume")


def test_script_becomes_the_command_when_everything_is_installed(tmp_path: Path) -> None:
    bin_folder = tmp_path / "venv" / "bin"
    bin_folder.mkdir(parents=True)
    python = bin_folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    stamp = {"digest": project_digest(), "extras": ["loadtest", "worker"]}
    (tmp_path / "venv" / STAMP).write_text(json.dumps(stamp))
    with subprocess.Popen(
        [str(ROOT / "symphony"), "bench", "nonsense"],
        env=environment({"SYMPHONY_VENV": str(tmp_path / "venv")}),
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        _, errors = script.communicate(timeout=60)
    assert script.returncode == 1
    assert errors.startswith("symphony: no benchmark 'nonsense'")


def test_script_without_a_python(tmp_path: Path) -> None:
    for tool in ("dirname", "readlink"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "symphony"), "status"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert_one_line(done, "Python 3.11")


def _assert_it_serves(cluster: Cluster) -> None:
    """It reports all of its processes, and answers over HTTP and in the terminal."""
    report = cluster.status()
    assert report["url"] == cluster.url
    assert [child["name"] for child in report["services"]] == CHILDREN
    assert {child["state"] for child in report["services"]} == {"ready", "running"}
    assert [worker["state"] for worker in report["workers"]] == ["ready"]
    assert report["sessions"] == 0
    assert set(report["tiers"]) == {"gpu", "arena", "disk", "objects"}

    reply = httpx.post(
        f"{cluster.url}/v1/chat/completions",
        json={"model": "zero", "messages": [{"role": "user", "content": "hello"}]},
        timeout=30,
    )
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["message"]["content"]

    chat = subprocess.run(
        command("chat", "--data-dir", str(cluster.data_dir)),
        env=environment(),
        input="hello\n/exit\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert chat.returncode == 0, chat.stderr
    assert "prompt tokens" in chat.stdout


def _assert_a_chat_is_written_down(data_dir: Path, url: str) -> None:
    """A turn is answered, and its KV comes to the disk of one of two hosts in pages of 2 KiB."""
    text = "a history that is longer than a block of sixty-four tokens" * 4
    body = {"model": "zero", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
    assert reply.json()["choices"][0]["message"]["content"]
    run = read_run_state(data_dir)
    assert run is not None

    def disks() -> list[dict[str, int]]:
        return [host["disk"] for host in describe(run, look(run))["hosts"]]

    wait_until(lambda: any(disk["blocks"] for disk in disks()), "blocks are on disk")
    one, none = sorted(disks(), key=lambda disk: -disk["blocks"])
    assert one["bytes"] >= one["blocks"] * 2 * 2048
    assert none["blocks"] == 0


def _host_id(cluster: Cluster) -> str:
    state = read_run_state(cluster.data_dir)
    assert state is not None
    return state.host_id
