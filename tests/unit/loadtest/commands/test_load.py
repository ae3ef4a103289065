"""`symphony loadtest`: what it hands to Locust, and what it says of what came back."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from cli.bootstrap import needed_extras
from cli.main import app
from loadtest.commands import load as load_command
from loadtest.commands.load import Load, check_answers, check_failures, locust_line, run_load
from loadtest.trace_files import FILES
from loadtest.users.measures import Turn
from loadtest.users.open_loop import Target
from loadtest.users.report import write_report
from shared.errors import NotFound, PeerUnavailable, SymphonyError

runner = CliRunner()


def load(folder: Path, **changes: Any) -> Load:
    found: dict[str, Any] = {
        "data_dir": folder, "url": "http://127.0.0.1:1", "api_key": "", "users": 64,
        "spawn_rate": 4.0, "duration_s": 30.0, "profile": "chat", "hints": 0.25, "faster": 4.0,
        "seed": 7, "trace": "", "popularity": "zipf:1", "model": "", "prompt_tokens": 1024,
        "watch": False, "out_dir": folder / "out", "web_port": None, "rate": 1.0,
        "target": Target(ttft_ms=1.0, tpot_ms=1.0), "is_search": False,
    }  # fmt: skip
    return Load(**found | changes)


def test_only_what_it_needs_is_installed() -> None:
    assert needed_extras(["loadtest", "--users", "8"]) == {"loadtest"}
    assert needed_extras(["loadtest", "--help"]) == set()


def test_locust_is_told_all_of_it(tmp_path: Path) -> None:
    line = locust_line(load(tmp_path, watch=True), "http://u", Path("c.pem"), tmp_path / "out")
    assert line[1:4] == ["-P", "-m", "locust"]
    told = dict(pairwise(line))
    assert (told["--users"], told["--profile"], told["--hints"]) == ("64", "chat", "0.25")
    assert (told["--faster"], told["--run-time"], told["--seed"]) == ("4", "30s", "7")
    assert (told["--host"], told["--cert"]) == ("http://u", "c.pem")
    assert told["--html"] == str(tmp_path / "out" / "locust.html")
    assert {"--headless", "--watch"} <= set(line)
    assert not any("key" in word for word in line)  # others can read a command line
    line = locust_line(load(tmp_path, web_port=8089), "http://u", None, tmp_path)
    assert "--headless" not in line and "--web-port" in line and "--cert" not in line


def test_without_a_deployment_there_is_no_load(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="symphony up"):
        run_load(load(tmp_path, url=None))
    with pytest.raises(PeerUnavailable, match="127"):
        check_answers("http://127.0.0.1:1", "", None)


def test_what_locust_says_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = "import pathlib; pathlib.Path('locust.log').write_text('vm/CRITICAL/root: no luck\\n')"
    monkeypatch.setattr(load_command, "check_answers", lambda *_: None)
    monkeypatch.setattr(load_command, "locust_line", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(SymphonyError, match=r"^no luck$"):
        run_load(load(tmp_path))


def test_the_exit_status_tells_of_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    turns = [Turn(at_s=0.0, kind="first", num_prompt=3), Turn(at_s=0, kind="first", trouble="503")]

    def run(told: Load) -> dict[str, Any]:
        found = write_report(tmp_path, turns, {"profile": told.profile}, 1.0)
        return found | {"report": str(tmp_path / "summary.md")}

    monkeypatch.setattr(load_command, "run_load", run)
    result = runner.invoke(app, ["loadtest", "--json", "--users", "2"])
    assert result.exit_code == 1
    assert "1 of 2 turns failed: 503" in result.stderr
    assert orjson.loads(result.stdout)["failures"] == 1
    turns.pop()
    result = runner.invoke(app, ["loadtest"])
    assert result.exit_code == 0 and "1 turns in 1 s, 0 failed" in result.stdout
    with pytest.raises(SymphonyError, match="no turn ended"):
        check_failures({"failures": 0, "turns": 0})


def test_traces_are_listed_with_where_they_are_from() -> None:
    result = runner.invoke(app, ["loadtest", "traces"])
    assert result.exit_code == 0
    text = "".join(result.stdout.split())
    for file in FILES:
        assert file.path in text and file.source.replace(" ", "") in text
        assert all(name in text for name in file.replays)
    assert runner.invoke(app, ["loadtest", "nonsense"]).exit_code == 1
