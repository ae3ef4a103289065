"""`symphony plan`: what it refuses, what it shows, and once from end to end."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.base.children import ROOT
from cli.main import app
from loadtest.commands.plan import render

LINE = "plan --users 10 --context 300 --data-dir {folder}"
SPREAD = {"mean": 20.0, "p50": 20.0, "p95": 40.0, "p99": 50.0}


def seen(gpus: int, *missed: str) -> dict[str, Any]:
    return {
        "gpus": gpus, "turns": 500, "ttft_ms": SPREAD, "tpot_ms": SPREAD,
        "history": {"gpu": 0.25, "recomputed": 0.75}, "missed": list(missed),
        "simulated": {"users": 400, "gpus": 2, "host_share": 0.5, "seconds": 100.0},
    }  # fmt: skip


SUMMARY: dict[str, Any] = {
    "profile": {"name": "p"}, "users": 2000, "context_tokens": 4000, "gpus": 10, "hosts": 3,
    "targets": {"percentile": "p95"}, "is_enough": True, "seen": seen(10),
    "fewer": seen(9, "first tokens took too long"), "without_hints": {"gpus": 12, "seen": seen(10)},
    "sessions": {
        "bytes": 1e12, "gpu_bytes": 1e11, "host_memory_bytes": 1e12, "disk_bytes": 12e12,
        "new_bytes_per_host_and_day": 5e12,
    },
    "settings": {"SYMPHONY_ARENA_BYTES": 123, "SYMPHONY_TURNS_RUNNING_MAX": 256},
    "machines": {"gpus": 4}, "seed": 7, "runs": [{}, {}],
}  # fmt: skip


def shown(summary: dict[str, Any], model: str = "Some/Model", gpus_here: int = 0) -> str:
    console = Console(width=150, record=True, soft_wrap=True)
    console.print(render(summary, model, gpus_here))
    return console.export_text()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--model a100-llama3-8b --gpu h100", "--gpu h100: a100-llama3-8b is a profile"),
        ("--model nowhere.json", "no latency profile 'nowhere.json'"),
        ("--model ./nowhere", "--model ./nowhere: no such folder"),
        ("--model a100-llama3-8b --ttft-ms 0", "--ttft-ms 0: not a number above 0"),
        ("--model a100-llama3-8b --seconds inf", "--seconds inf: not a number above 0"),
        ("--model a100-llama3-8b --dram-gb nan", "--dram-gb nan: not a number above 0"),
        ("--model a100-llama3-8b --context 131000", "--context 131000: with a message"),
        ("--model a100-llama3-8b --tpot-ms 3", "--tpot-ms 3: an answer alone"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_option(
    more: str, says: str, tmp_path: Path
) -> None:
    line = LINE.format(folder=tmp_path).split() + more.split()
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert says in result.stderr


ONE_HOST = {**SUMMARY, "gpus": 4, "hosts": 1}


def how(summary: dict[str, Any], model: str = "Some/Model", gpus_here: int = 0) -> list[str]:
    """The lines between the tables and what was simulated."""
    text = shown(summary, model, gpus_here)
    lines = [line.rstrip() for line in text.splitlines()]
    start = next(at for at, line in enumerate(lines) if line.startswith("To "))
    return lines[start : lines.index("", start)]


def test_one_host_is_one_command_where_the_gpus_are() -> None:
    lines = [
        "  export SYMPHONY_ARENA_BYTES=123",
        "  export SYMPHONY_TURNS_RUNNING_MAX=256",
        "  ./symphony up --model Some/Model --workers 4",
        "In compose (one GPU) and on Kubernetes: docs/production.md, Size",
    ]
    assert how(ONE_HOST, gpus_here=4) == ["To run it here:", *lines]
    elsewhere = "To run it on a host with 4 GPUs; this machine has"
    assert how(ONE_HOST) == [f"{elsewhere} none:", *lines]
    assert how(ONE_HOST, gpus_here=1) == [f"{elsewhere} 1 GPU:", *lines]


def test_several_hosts_each_get_their_own_workers() -> None:
    first, *_, others, kubernetes = how({**SUMMARY, "gpus": 16, "hosts": 4}, gpus_here=4)
    assert first == "To run it on the first of 4 hosts, each with 4 GPUs:"
    assert others.startswith("and on each of the others, with the same settings, a kvstore and 4")
    assert others.endswith(" workers: docs/operations.md, To add machines")
    assert kubernetes == "On Kubernetes 4 hosts of 4 workers: docs/production.md, Size"
    assert "4 workers, 2 on the last:" in how(SUMMARY)[-2]
    for page, heading in (("operations", "### To add machines"), ("production", "## Size")):
        assert heading in (ROOT / "docs" / f"{page}.md").read_text()


@pytest.mark.parametrize(
    ("gpus", "hosts", "what", "command"),
    [
        (3, 1, "To try it on", "--workers 3"),
        (10, 3, "To try it on", "--hosts 3 --workers 4"),
        (64, 16, "To try one of its 16 hosts on", "--workers 4"),
    ],
)
def test_a_profile_is_no_model_to_run_but_emulated(
    gpus: int, hosts: int, what: str, command: str
) -> None:
    for model in ("a100-llama3-8b", "m.json"):
        first, *lines, hint = how({**SUMMARY, "gpus": gpus, "hosts": hosts}, model)
        assert first.startswith(what)
        assert lines == [
            "  export SYMPHONY_TURNS_RUNNING_MAX=256",
            f"  ./symphony up --emulate {model} {command}",
        ]
        assert hint.startswith("With --model OWNER/NAME")


def test_people_are_told_the_answer_and_why_fewer_are_not_enough() -> None:
    text = shown(SUMMARY)
    assert "10 GPUs on 3 hosts, for 2,000 people with 4,000 tokens of history" in text
    assert "With 9 GPUs first tokens took too long." in text
    assert "Without hints it takes 12 GPUs." in text
    assert "400 of them on 2 GPUs" in text and "seed 7" in text


def test_people_are_told_if_nothing_was_enough_and_if_little_was_seen() -> None:
    short = {**SUMMARY, "is_enough": False, "seen": {**seen(10, "it was slow"), "turns": 9}}
    text = shown({**short, "fewer": None, "without_hints": None})
    assert "10 GPUs on 3 hosts are not enough" in text
    assert "Not enough: it was slow." in text
    assert "Only 9 turns counted" in text


def test_from_end_to_end_for_a_few_people(tmp_path: Path) -> None:
    line = LINE.format(folder=tmp_path).split()
    line += ["--model", "a100-llama3-8b", "--seconds", "10", "--reply", "50", "--hinted", "0.5"]
    line += ["--gpus-max", "1", "--json"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["is_enough"] and summary["gpus"] == 1
    assert summary["without_hints"]["gpus"] == 1
    assert summary["seen"]["simulated"]["users"] == 10
    assert "300 tokens of history" in shown(summary, "a100-llama3-8b")
