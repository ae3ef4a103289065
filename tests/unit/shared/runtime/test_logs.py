"""Logs: one JSON object a line."""

import asyncio
import json
import logging
import sys
from typing import Any

import pytest

from shared.runtime.logs import JsonFormatter, configure_logs, log_context

FORMATTER = JsonFormatter("worker", "3")


def line(message: str, *args: object, **extra: object) -> dict[str, Any]:
    record = logging.LogRecord("some.module", logging.INFO, "file.py", 1, message, args, None)
    record.__dict__.update(extra)
    text = FORMATTER.format(record)
    assert "\n" not in text
    fields: dict[str, Any] = json.loads(text)
    return fields


def test_a_line_says_who_when_and_what() -> None:
    fields = line("%d pages\nfreed", 3)
    assert fields.pop("time").endswith("+00:00")
    assert fields == {
        "level": "info", "service": "worker", "instance": "3", "logger": "some.module",
        "message": "3 pages\nfreed",
    }  # fmt: skip


def test_extra_fields_are_top_level_keys_whatever_they_hold() -> None:
    fields = line("x", turn_id="t-1", why={1, 2}, error=ValueError("no"))
    assert fields["turn_id"] == "t-1"
    assert fields["error"] == "no"
    assert fields["why"] == "{1, 2}"


def test_what_a_stranger_sent_does_not_fill_the_log() -> None:
    assert len(line("x", session_id="s" * 1_000_000)["session_id"]) == 1024


def test_context_reaches_every_line_inside_and_none_after() -> None:
    with log_context(request_id="r"):
        with log_context(turn_id="t"):
            assert line("x").items() >= {"request_id": "r", "turn_id": "t"}.items()
        assert "turn_id" not in line("x")
        assert line("x")["request_id"] == "r"
    assert "request_id" not in line("x")


def test_context_of_one_task_does_not_show_in_another() -> None:
    async def request(name: str, barrier: asyncio.Barrier) -> str:
        with log_context(request_id=name):
            await barrier.wait()
            return str(line("x")["request_id"])

    async def scenario() -> list[str]:
        barrier = asyncio.Barrier(2)
        return list(await asyncio.gather(request("a", barrier), request("b", barrier)))

    assert asyncio.run(scenario()) == ["a", "b"]


def test_an_exception_comes_along() -> None:
    try:
        raise KeyError("gone")
    except KeyError:
        fields = line("x", exc_info=sys.exc_info())
    assert fields["exception"].startswith("Traceback")
    assert fields["exception"].endswith("KeyError: 'gone'")


def test_everything_goes_to_stderr_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        configure_logs("tracker", "0", "warning")
        logging.getLogger("some.module").info("not shown")
        logging.getLogger("some.module").warning("shown")
    finally:
        root.handlers = handlers
        root.setLevel(level)
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["message"] == "shown"
