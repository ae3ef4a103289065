"""`symphony plan`: what it refuses, what it shows, and once from end to end."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.main import app
from loadtest.commands.plan import render, up_lines

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
    "settings": {"SYMPHONY_ARENA_BYTES": 123},
    "machines": {"gpus": 4}, "seed": 7, "runs": [{}, {}],
}  # fmt: skip


def shown(summary: dict[str, Any], model: str = "Some/Model") -> str:
    console = Console(width=150, record=True, soft_wrap=True)
    console.print(render(summary, model))
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


def test_lines_to_run_it_name_the_model_as_up_takes_it() -> None:
    assert up_lines(SUMMARY, "Some/Model") == [
        "export SYMPHONY_ARENA_BYTES=123",
        "./symphony up --model Some/Model --workers 4",
    ]
    assert up_lines(SUMMARY, "a100-llama3-8b")[-1] == (
        "./symphony up --emulate a100-llama3-8b --workers 4"
    )
    assert (
        up_lines({**SUMMARY, "gpus": 3}, "m.json")[-1]
        == "./symphony up --emulate m.json --workers 3"
    )


def test_people_are_told_the_answer_and_why_fewer_are_not_enough() -> None:
    text = shown(SUMMARY)
    assert "10 GPUs on 3 hosts, for 2,000 people with 4,000 tokens of history" in text
    assert "With 9 GPUs first tokens took too long." in text
    assert "Without hints it takes 12 GPUs." in text
    assert "on 2 more hosts a kvstore and 4 workers, 2 on the last" in text
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
