"""What a long step shows: a bar on a terminal, and nothing but its first line elsewhere."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from cli.base.reporting import out


@contextmanager
def download_bar(text: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar over a download; call the value with the bytes that have come so far."""
    columns = (
        TextColumn("[dim]symphony:[/dim] {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with _shown(columns) as progress:
        task = progress.add_task(text, total=num_bytes)
        yield lambda so_far: progress.update(task, completed=min(so_far, num_bytes))


@contextmanager
def busy_bar(text: str) -> Iterator[None]:
    """A bar over something whose end is not known, with the time that has passed."""
    columns = (
        TextColumn("[dim]symphony:[/dim] {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with _shown(columns) as progress:
        progress.add_task(text, total=None)
        yield


def _shown(columns: Sequence[ProgressColumn]) -> Progress:
    return Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
