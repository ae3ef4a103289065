"""`symphony bench`: which benchmark runs, what it prints, and its exit status."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
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
    result = runner.invoke(app, ["bench"])
    assert result.exit_code == 2
    assert "symphony bench list" in result.stderr
