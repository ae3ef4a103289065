"""`symphony demo`, as a user starts it, in small: both parts, their numbers, and nothing left."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtest.deployment import command, environment, processes_of, symphony, wait_until

SIDES = ("without", "with")


@pytest.fixture
def place() -> Iterator[Path]:
    """Where its cluster has its folder: near the root, since a socket's path has a limit."""
    with tempfile.TemporaryDirectory(prefix="demo-") as place:
        yield Path(place)


def assert_nothing_left(place: Path) -> None:
    wait_until(lambda: not processes_of(place), "its cluster has ended")
    assert not list(place.iterdir())


def test_both_parts_are_played_on_both_sides_and_told_in_numbers(
    tmp_path: Path, place: Path
) -> None:
    out = tmp_path / "out"
    done = symphony("demo", "--quick", "--json", "--out", str(out), env={"TMPDIR": str(place)})
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    for part, num_turns in (("chat", 2), ("team", 8)):
        figures = found["parts"][part]
        for side in SIDES:
            assert figures[side]["turns"] == num_turns
            assert 0 < figures[side]["ttft_ms_median"] <= figures[side]["ttft_ms_p99"]
            assert figures[side]["whole_s"] > 0
            assert figures[side]["cached_tokens"] > 0
        assert figures["pairs"] == num_turns
        assert figures["hints"]["advisories"]["used"] >= 1
        assert len(figures["verdicts"]) == 2
    assert found["parts"]["chat"]["hints"]["advisories"] == {"submitted": 2, "used": 2}
    assert {turn["side"] for turn in found["turns"]} == set(SIDES)
    assert json.loads((out / "demo.json").read_text()) == found
    assert (out / "demo.html").read_text().count("data:image/png;base64,") == 2
    assert {path.name for path in out.iterdir()} == {
        "chat.png", "team.png", "demo.json", "demo.html",
    }  # fmt: skip
    assert_nothing_left(place)


@contextmanager
def at_the_chat(out: Path, place: Path) -> "Iterator[subprocess.Popen[str]]":
    """One at which somebody was answered already."""
    demo = subprocess.Popen(
        command("demo", "--out", str(out)),
        env=environment({"TMPDIR": str(place)}),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

    def somebody_was() -> bool:
        assert demo.poll() is None, "it ended instead"
        logs = place.glob("*/data/logs/frontend.log")
        return any("/v1/chat/completions" in log.read_text() for log in logs)

    try:
        wait_until(somebody_was, "somebody is answered")
        yield demo
    finally:
        demo.kill()
        demo.communicate()


def test_a_deployment_that_dies_is_told_with_where_its_logs_are(
    tmp_path: Path, place: Path
) -> None:
    out = tmp_path / "out"
    with at_the_chat(out, place) as demo:
        supervisor = next(pid for pid, line in processes_of(place).items() if " up --data" in line)
        os.kill(supervisor, signal.SIGKILL)
        said, _ = demo.communicate(timeout=300)
    assert demo.returncode == 1 and "Traceback" not in said, said
    last = said.splitlines()[-1]
    assert last.startswith("symphony: the chat failed: ") and f"(logs: {out / 'logs'})" in last
    assert (out / "logs" / "frontend.log").exists()
    assert_nothing_left(place)


def test_its_deployment_ends_with_it(tmp_path: Path, place: Path) -> None:
    with at_the_chat(tmp_path / "out", place) as demo:
        demo.send_signal(signal.SIGTERM)  # which ends it as Ctrl-C does
        said, _ = demo.communicate(timeout=300)
    assert demo.returncode == 130 and "Traceback" not in said, said
    assert_nothing_left(place)


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = symphony("demo", "--quick", "--out", str(tmp_path / "file"))
    assert done.returncode == 1
    assert f"--out {tmp_path / 'file'}: " in done.stderr and len(done.stderr.splitlines()) == 1
