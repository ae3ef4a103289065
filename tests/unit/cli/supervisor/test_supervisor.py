"""The supervisor on stand-in children: starts, watches, restarts, stops."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cli.base.board import Step
from cli.base.children import start_child
from cli.base.config import LauncherConfig
from cli.base.runfile import read_run_state
from cli.inspection.description import process_states
from cli.inspection.snapshot import is_alive
from cli.start.options import DeploymentOptions
from cli.start.plan import ChildPlan, DeploymentPlan
from cli.supervisor.deployment import DeploymentFailed, Supervisor, check_start, last_line
from cli.supervisor.rotation import LogKeeper, put_aside
from cli.supervisor.signals import StopRequested, StopSignals
from shared.errors import ConfigError


class Notes:
    """A reporter that remembers, and lets a test act when something is said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.on_event: Callable[[], None] = lambda: None

    def progress(self, text: str) -> None:
        self.said.append(text)

    def steps(self, steps: Sequence[Step]) -> None:
        pass

    def ready(self, url: str, reasons: Sequence[str], capacity: str) -> None:
        self.said += [url, *reasons]

    def event(self, text: str) -> None:
        self.said.append(text)
        self.on_event()


def stand_in(tmp_path: Path, name: str, code: str, stage: int = 0) -> ChildPlan:
    log_path = tmp_path / f"{name}.log"
    command = [sys.executable, "-S", "-c", code]
    return ChildPlan(name, stage, log_path, lambda: start_child(command, log_path=log_path))


def make_supervisor(
    tmp_path: Path,
    signals: StopSignals,
    *children: ChildPlan,
    restart: bool = True,
    log_bytes_max: int = 0,
    start_asker: Callable[[], "subprocess.Popen[bytes]"] | None = None,
    stuck_after_s: float = 1.0,
    num_hosts: int = 1,
    port: int = 8000,
    ready_timeout_s: float = 30.0,
) -> tuple[Supervisor, Notes]:
    notes = Notes()
    logs = LogKeeper(tmp_path, log_bytes_max, notes.event)
    options = DeploymentOptions(
        data_dir=tmp_path,
        num_hosts=num_hosts,
        port=port,
        restart=restart,
        ready_timeout_s=ready_timeout_s,
    )
    plan = DeploymentPlan("nats://127.0.0.1:9", "", [], list(children), start_asker=start_asker)
    config = LauncherConfig(status_interval_s=0.5, stuck_after_s=stuck_after_s)
    return Supervisor(options, plan, notes, signals, logs, config), notes


def live(supervisor: Supervisor) -> None:
    supervisor.start()
    supervisor.wait_ready()
    supervisor.watch()


SLEEP = "import time; time.sleep(1000)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=1)"
)


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    with StopSignals() as signals:
        yield signals


@pytest.fixture
def _always_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "_is_ready", lambda _: True)


def test_who_listens_in_its_place_and_speaks_no_http_is_not_its_answer(
    tmp_path: Path, signals: StopSignals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with suppress(OSError):  # closed: the test is over
                while True:
                    with server.accept()[0] as client:
                        client.sendall(b'INFO {"server_id":"other"}\r\n')

        threading.Thread(target=greet, daemon=True).start()
        port = server.getsockname()[1]
        supervisor, _ = make_supervisor(tmp_path, signals, port=port, ready_timeout_s=0.2)
        supervisor.start()
        with pytest.raises(DeploymentFailed, match="not ready"):
            supervisor.wait_ready()


def watch(supervisor: Supervisor, timeout_s: float | None) -> None:
    """Let it look at its children once, or wait until one of them ends."""
    supervisor._watch_once(timeout_s)


def pid_now(supervisor: Supervisor, name: str) -> int | None:
    """The pid of its child of this name, None while there is none."""
    child = supervisor._children.get(name)
    return None if child is None else child.pid


def pid_of(tmp_path: Path, name: str) -> int:
    state = read_run_state(tmp_path)
    assert state is not None
    return next(child.pid for child in state.services if child.name == name)


@pytest.mark.usefixtures("_always_ready")
def test_a_dead_child_is_started_again(tmp_path: Path, signals: StopSignals) -> None:
    supervisor, notes = make_supervisor(
        tmp_path, signals, stand_in(tmp_path, "a", SLEEP), stand_in(tmp_path, "b", SLEEP)
    )
    try:
        supervisor.start()
        supervisor.wait_ready()
        old = pid_of(tmp_path, "a"), pid_of(tmp_path, "b")
        os.kill(old[0], signal.SIGKILL)
        while pid_of(tmp_path, "a") == old[0]:
            watch(supervisor, 5.0)
        assert pid_of(tmp_path, "b") == old[1]
        assert any("a was killed by SIGKILL; restarting" in text for text in notes.said)
    finally:
        supervisor.stop()
    assert not is_alive(old[1])


def dies_when_told(tmp_path: Path, name: str) -> tuple[ChildPlan, Path]:
    """A child that dies again and again from when a file is there."""
    line = '{"message": "cannot open", "exception": "Traceback\\\\nOSError: no"}'
    flag = tmp_path / "die"
    code = (
        f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
        f"print('{line}'); raise SystemExit(3)"
    )
    return stand_in(tmp_path, name, code), flag


@pytest.mark.usefixtures("_always_ready")
def test_a_frontend_that_keeps_dying_ends_the_deployment_with_its_last_words(
    tmp_path: Path, signals: StopSignals
) -> None:
    child, flag = dies_when_told(tmp_path, "frontend")
    supervisor, _ = make_supervisor(tmp_path, signals, child)
    supervisor.start()
    supervisor.wait_ready()
    flag.touch()
    words = r"frontend ended with status 3, 5 times .*cannot open: OSError"
    with pytest.raises(DeploymentFailed, match=words):
        supervisor.watch()
    supervisor.stop()


@pytest.mark.usefixtures("_always_ready")
def test_the_deployment_goes_on_without_another_child_and_says_that_it_fails(
    tmp_path: Path, signals: StopSignals
) -> None:
    child, flag = dies_when_told(tmp_path, "tracker")
    supervisor, notes = make_supervisor(
        tmp_path, signals, child, stand_in(tmp_path, "frontend", SLEEP)
    )
    supervisor.start()
    supervisor.wait_ready()
    flag.touch()
    while not any("again: cannot open: OSError: no" in text for text in notes.said):
        watch(supervisor, 5.0)
    state = read_run_state(tmp_path)
    assert state is not None and state.failing == ["tracker"]
    assert process_states(state, None)["tracker"] == "failing"
    assert [child.name for child in state.services] == ["frontend"]
    supervisor.stop()


def test_a_death_before_readiness_ends_the_start(
    tmp_path: Path, signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "_is_ready", lambda _: False)
    supervisor, _ = make_supervisor(
        tmp_path, signals, stand_in(tmp_path, "a", "raise SystemExit('symphony: no such thing')")
    )
    supervisor.start()
    with pytest.raises(DeploymentFailed, match="a ended with status 1: symphony: no such thing"):
        supervisor.wait_ready()
    supervisor.stop()


@pytest.mark.usefixtures("_always_ready")
def test_without_restart_a_dead_child_is_only_reported(
    tmp_path: Path, signals: StopSignals
) -> None:
    supervisor, notes = make_supervisor(
        tmp_path, signals, stand_in(tmp_path, "a", SLEEP), restart=False
    )
    supervisor.start()
    supervisor.wait_ready()
    os.kill(pid_of(tmp_path, "a"), signal.SIGKILL)
    while not any("not restarted" in text for text in notes.said):
        watch(supervisor, 5.0)
    state = read_run_state(tmp_path)
    assert state is not None
    assert state.services == []
    supervisor.stop()


@pytest.mark.usefixtures("_always_ready")
def test_a_signal_interrupts_and_a_second_one_kills_the_stubborn(
    tmp_path: Path, signals: StopSignals
) -> None:
    stubborn = stand_in(tmp_path, "a", f"{STUBBORN}; time.sleep(1000)")
    supervisor, _ = make_supervisor(tmp_path, signals, stubborn)
    supervisor.start()
    supervisor.wait_ready()
    while not stubborn.log_path.read_text():
        time.sleep(0.01)
    pid = pid_of(tmp_path, "a")
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(StopRequested):
        supervisor.watch()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    supervisor.stop()
    assert not is_alive(pid)


@pytest.mark.usefixtures("_always_ready")
def test_a_signal_in_the_middle_of_starting_children_is_heard(tmp_path: Path) -> None:
    """Whenever it comes: an exception thrown into a fork would be lost."""
    for delay_ms in range(0, 20, 2):
        with StopSignals() as fresh:
            supervisor, _ = make_supervisor(
                tmp_path, fresh, *(stand_in(tmp_path, f"c{i}", SLEEP) for i in range(5))
            )
            timer = threading.Timer(delay_ms / 1e3, os.kill, (os.getpid(), signal.SIGTERM))
            timer.start()
            with pytest.raises(StopRequested):
                live(supervisor)
            supervisor.stop()


@pytest.mark.usefixtures("_always_ready")
def test_the_supervisor_wakes_by_itself_to_put_large_logs_aside(
    tmp_path: Path, signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.supervisor.rotation.CHECK_EVERY_NS", 1_000_000)
    flag = tmp_path / "write"
    code = (
        f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.001)\n"
        f"os.write(1, b'x' * 100 + b'\\n')\n{SLEEP}"  # a print may be two writes
    )
    child = stand_in(tmp_path, "a", code)
    supervisor, _ = make_supervisor(tmp_path, signals, child, log_bytes_max=50)
    supervisor.start()
    supervisor.wait_ready()
    flag.touch()
    while not (tmp_path / "a.log.1").exists():
        watch(supervisor, None)  # nothing else wakes it
    supervisor.stop()
    assert (tmp_path / "a.log.1").read_text() == "x" * 100 + "\n"
    assert child.log_path.read_text() == ""


def scripted_asker(
    tmp_path: Path, rounds: Sequence[Sequence[str]]
) -> Callable[[], "subprocess.Popen[bytes]"]:
    """Something that tells of rounds in which these servers answered, and then says no more."""
    lines = [
        json.dumps({"lasted_ns": 1, "is_passed_on": True, "services": [], "servers": list(names)})
        for names in rounds
    ]
    code = f"import time\nfor line in {lines!r}: print(line, flush=True)\n{SLEEP}"
    command = [sys.executable, "-S", "-c", code]
    return lambda: start_child(command, log_path=tmp_path / "asker.log", is_piped=True)


def asking_of(supervisor: Supervisor) -> Any:
    """What asks its children whether they still work, None where nothing does."""
    return supervisor._asking


def watch_until(supervisor: Supervisor, is_enough: Callable[[], bool]) -> None:
    asking = asking_of(supervisor)
    assert asking is not None
    asking.begin(time.monotonic_ns())
    while not is_enough():
        watch(supervisor, 5.0)


@pytest.mark.usefixtures("_always_ready")
def test_a_child_that_does_not_answer_is_killed_even_if_it_is_stopped_and_replaced(
    tmp_path: Path, signals: StopSignals
) -> None:
    asker = scripted_asker(tmp_path, [["a", "b"], ["b"], ["b"]])
    children = [stand_in(tmp_path, name, SLEEP) for name in "ab"]
    supervisor, notes = make_supervisor(tmp_path, signals, *children, start_asker=asker)
    supervisor.start()
    supervisor.wait_ready()
    old = pid_of(tmp_path, "a"), pid_of(tmp_path, "b")
    os.kill(old[0], signal.SIGSTOP)
    watch_until(supervisor, lambda: pid_of(tmp_path, "a") != old[0])
    assert pid_of(tmp_path, "b") == old[1]
    said = [text for text in notes.said if text.startswith("a ")]
    assert said == [
        "a does not answer for 1 s; killing it",
        "a was killed by SIGKILL; restarting it",
    ]
    assert silent_in(tmp_path) == []
    supervisor.stop()
    asking = asking_of(supervisor)
    assert asking is not None and not asking.files


def silent_in(tmp_path: Path) -> list[str]:
    state = read_run_state(tmp_path)
    assert state is not None
    return state.silent


@pytest.mark.usefixtures("_always_ready")
def test_a_child_that_is_silent_is_written_down_before_it_is_stuck(
    tmp_path: Path, signals: StopSignals
) -> None:
    asker = scripted_asker(tmp_path, [["a"], [], []])
    child = stand_in(tmp_path, "a", SLEEP)
    supervisor, _ = make_supervisor(tmp_path, signals, child, start_asker=asker, stuck_after_s=5.0)
    supervisor.start()
    supervisor.wait_ready()
    watch_until(supervisor, lambda: silent_in(tmp_path) == ["a"])
    state = read_run_state(tmp_path)
    assert state is not None and process_states(state, None) == {"a": "silent"}
    supervisor.stop()


@pytest.mark.usefixtures("_always_ready")
@pytest.mark.parametrize(("restart", "stuck_after_s"), [(False, 1.0), (True, 0.0)])
def test_nobody_is_asked_whom_it_would_cost_his_life_for_good(
    tmp_path: Path, signals: StopSignals, restart: bool, stuck_after_s: float
) -> None:
    asker = scripted_asker(tmp_path, [])
    child = stand_in(tmp_path, "a", SLEEP)
    supervisor, _ = make_supervisor(
        tmp_path, signals, child, restart=restart, start_asker=asker, stuck_after_s=stuck_after_s
    )
    assert asking_of(supervisor) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it logged nothing"),
        ("one\ntwo\n\n", "two"),
        ('{"message": "m"}\n', "m"),
        ('{"message": "m", "exception": "T\\n  File\\nValueError: v"}', "m: ValueError: v"),
        ('["no object"]', '["no object"]'),
        ("1", "1"),
    ],
)
def test_last_line_of_a_log(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "log").write_text(text)
    assert last_line(tmp_path / "log") == words


def test_last_line_of_a_log_that_was_just_put_aside(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("why\n")
    put_aside(tmp_path / "log")
    assert last_line(tmp_path / "log") == "why"


def test_last_line_of_no_log(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none") == "it left no log"


def test_a_strange_folder_in_place_of_the_shared_memory_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.start.hosts.SHARED_MEMORY", tmp_path)
    options = DeploymentOptions(data_dir=tmp_path / "data", port=0, num_hosts=2)
    check_start(options)
    options.hosts[1].arena_dir.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=r"SYMPHONY_ARENA_DIR=.*symbolic link"):
        check_start(options)
