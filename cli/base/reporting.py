"""How a deployment reports to its user: on the terminal, or through a pipe to the command that
detached it.
"""

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import Any, Protocol

from rich.console import Console

from cli.base.board import Board, Step
from cli.base.called import hint
from cli.base.runfile import DEFAULT_DATA_DIR

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def quiet_libraries() -> None:
    """Keep what libraries log off the terminal: commands say in their own words what matters."""
    logging.getLogger().addHandler(logging.NullHandler())


def complain(message: str) -> None:
    """One line on stderr, in the form every command uses."""
    with suppress(OSError):  # the disk with the log is full, or the reader has gone
        print(f"symphony: {message}", file=sys.stderr)


class Reporter(Protocol):
    """What the supervisor has to say."""

    def progress(self, text: str) -> None:
        """A step of the start."""
        ...

    def steps(self, steps: Sequence[Step]) -> None:
        """What every process does; called several times a second."""
        ...

    def ready(self, url: str, reasons: Sequence[str], capacity: str) -> None:
        """A turn can be served; `reasons` say what is missing, `capacity`, as a table, what
        KV there is room for.
        """
        ...

    def event(self, text: str) -> None:
        """Something happened in the running deployment."""
        ...


class TerminalReporter:
    """To the user who waits in front of it."""

    def __init__(self, data_dir: Path, goodbye: str) -> None:
        self._data_dir = data_dir
        self._goodbye = goodbye  # how to stop it
        self._board = Board(out)

    def progress(self, text: str) -> None:
        self._board.line(text)

    def steps(self, steps: Sequence[Step]) -> None:
        self._board.show(steps)

    def tick(self) -> None:
        """Let time pass; several times a second where nothing else is called."""
        self._board.tick()

    def close(self) -> None:
        """The start is over, well or not."""
        self._board.close()

    def ready(self, url: str, reasons: Sequence[str], capacity: str) -> None:
        self.close()
        out.print(welcome(url, self._data_dir))
        if capacity:
            out.print(indent(capacity, "  ") + "\n", markup=False)
        out.print(f"[dim]{self._goodbye} stops everything.[/dim]")
        for reason in reasons:
            complain(f"degraded: {reason}")

    def event(self, text: str) -> None:
        complain(text)


class PipeReporter:
    """To the `up --detach` that waits for us, one JSON object a line, and from `log_to` on to our
    own log.
    """

    def __init__(self, file_number: int) -> None:
        self._file_number: int | None = file_number
        self._has_log = False
        self._steps: list[Step] = []  # last sent

    def log_to(self, path: Path) -> None:
        """Send what this process prints to the end of a file, and no more to the terminal."""
        path.parent.mkdir(exist_ok=True)
        with path.open("ab", buffering=0) as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        self._has_log = True

    def progress(self, text: str) -> None:
        self._send({"progress": text})

    def steps(self, steps: Sequence[Step]) -> None:
        if list(steps) != self._steps:
            self._steps = list(steps)
            self._send({"steps": [asdict(step) for step in steps]})

    def ready(self, url: str, reasons: Sequence[str], capacity: str) -> None:
        for reason in reasons:
            complain(f"degraded: {reason}")
        self._send({"ready": url, "reasons": list(reasons), "capacity": capacity})
        self._close()

    def failed(self, message: str) -> None:
        """The deployment did not come up. A refusal, before there is a log, is the caller's to
        show.
        """
        if self._has_log:
            complain(message)
        self._send({"failed": message})
        self._close()

    def event(self, text: str) -> None:
        complain(text)
        self._send({"event": text})

    def _send(self, message: dict[str, Any]) -> None:
        if self._file_number is not None:
            with suppress(BrokenPipeError):  # the command that detached us has ended
                os.write(self._file_number, json.dumps(message).encode() + b"\n")

    def _close(self) -> None:
        if self._file_number is not None:
            os.close(self._file_number)
            self._file_number = None


def for_data_dir(command: str, data_dir: Path) -> str:
    """A command line of ours for this data folder."""
    is_default = data_dir == DEFAULT_DATA_DIR.expanduser().resolve()
    return hint(command) + ("" if is_default else f" --data-dir {data_dir}")


def welcome(url: str, data_dir: Path) -> str:
    """What to do with a deployment that is up."""
    return (
        f"\n[bold green]Symphony is up:[/bold green] [bold]{url}[/bold]\n\n"
        f"  chat in a browser     {url}/\n"
        f"  chat in a terminal    {for_data_dir('chat', data_dir)}\n"
        f'  from a program        OpenAI(base_url="{url}/v1", api_key="none")\n'
        f"  what is running       {for_data_dir('status', data_dir)}\n"
    )
