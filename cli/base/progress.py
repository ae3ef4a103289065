"""What a long step shows: a bar on a terminal, elsewhere a line now and then."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from cli.base.board import REPEAT_S
from cli.base.reporting import out
from shared.runtime.stages import bytes_text


@contextmanager
def download_bar(text: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar over a download; call the value with the bytes that have come so far."""
    columns = (
        TextColumn("[dim]symphony:[/dim] {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    num_done = 0

    def on_bytes(so_far: int) -> None:
        nonlocal num_done
        num_done = min(so_far, num_bytes)
        progress.update(task, completed=num_done)

    with (
        _shown(columns) as progress,
        _repeated(lambda: f"{text}: {bytes_text(num_done, num_bytes)}"),
    ):
        task = progress.add_task(text, total=num_bytes)
        yield on_bytes


@contextmanager
def busy_bar(text: str) -> Iterator[None]:
    """A bar over something whose end is not known, with the time that has passed."""
    columns = (
        TextColumn("[dim]symphony:[/dim] {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with _shown(columns) as progress, _repeated(lambda: text):
        progress.add_task(text, total=None)
        yield


def _shown(columns: Sequence[ProgressColumn]) -> Progress:
    return Progress(*columns, console=out, transient=True, disable=not out.is_terminal)


@contextmanager
def _repeated(text: Callable[[], str]) -> Iterator[None]:
    """Where there is no bar, a line every few seconds."""
    if out.is_terminal:
        yield
        return
    began, is_over = time.monotonic(), Event()

    def repeat() -> None:
        while not is_over.wait(REPEAT_S):
            seconds = time.monotonic() - began
            out.print(f"symphony: {text()} ({seconds:.0f} s)", markup=False)

    thread = Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
