"""`symphony bench`: which benchmark runs, what it prints, and its exit status."""

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from loadtest import starting
from loadtest.commands import bench

runner = CliRunner()


def test_bench_keeps_stdout_for_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("stub_bench")

    def run(argv: list[str]) -> dict[str, Any]:
        print("working")
        return {"argv": argv}

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stub_bench", module)
    monkeypatch.setitem(bench.BENCHES, "stub", "stub_bench")
    bench.run_bench("stub", ["--history-tokens", "5"], as_json=True)
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"argv": ["--history-tokens", "5"]}
    assert captured.err == "working\n"


@pytest.mark.parametrize(("violations", "exit_code"), [([], 0), (["a stream was lost"], 1)])
def test_a_guarantee_that_does_not_hold_is_an_exit_status(
    monkeypatch: pytest.MonkeyPatch, violations: list[str], exit_code: int
) -> None:
    module = ModuleType("stub_bench")
    module.run = lambda argv: {"violations": violations}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stub_bench", module)
    monkeypatch.setitem(bench.BENCHES, "stub", "stub_bench")
    result = runner.invoke(app, ["bench", "stub", "--json"])
    assert result.exit_code == exit_code
    assert json.loads(result.stdout) == {"violations": violations}


def test_bench_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        bench, "run_bench", lambda name, argv, as_json: seen.append((name, argv, as_json))
    )
    assert runner.invoke(app, ["bench", "http", "--concurrency", "64", "--json"]).exit_code == 0
    assert seen == [("http", ["--concurrency", "64"], True)]


@pytest.mark.parametrize("name", bench.BENCHES)
def test_a_benchmark_shows_its_own_options(name: str) -> None:
    result = runner.invoke(app, ["bench", name, "--help"])
    assert result.exit_code == 0, result.stderr
    assert f"usage: symphony bench {name} [-h] [--" in " ".join(result.stdout.split())


def test_bench_alone_shows_the_way() -> None:
    for words in (["bench", "--help"], ["bench", "-h", "--json"]):
        result = runner.invoke(app, words)
        assert result.exit_code == 0
        assert "bench [OPTIONS]" in result.stdout


def test_benchmarks_are_listed_for_whom_they_are() -> None:
    result = runner.invoke(app, ["bench"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line for line in lines if line.startswith("for ")] == [
        "for users", "for papers", "for developers",
    ]  # fmt: skip
    listed = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert list(listed) == list(bench.BENCHES)
    assert all(len(line.split(maxsplit=1)[1]) > 10 for line in listed.values())
    assert json.loads(runner.invoke(app, ["bench", "--json"]).stdout) == bench.GROUPS


def test_one_option_limits_every_start_and_the_wait_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("loadtest.starting.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def start(argv: list[str]) -> dict[str, Any]:
        waiting = starting.Waiting("it is ready")
        for now_s[0] in (0.0, 4.9, 5.0, 6.0, 499.9, 500.0):
            waiting.check()
        return {}

    module = ModuleType("stub_bench")
    module.run = start  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stub_bench", module)
    monkeypatch.setitem(bench.BENCHES, "stub", "stub_bench")
    result = runner.invoke(app, ["bench", "--ready-timeout-s", "500", "stub"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[:3] == [
        "waiting until it is ready: 5 s of at most 500",
        "waiting until it is ready: 500 s of at most 500",
        "symphony: not within 500 s: it is ready (bench --ready-timeout-s waits longer)",
    ]
