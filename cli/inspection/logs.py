"""`symphony logs`: what the processes of a deployment log, as text."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.base.runfile import is_called
from shared.errors import ConfigError

POLL_S = 0.25
READ_BYTES_MAX = 4 * 1024 * 1024  # of each file, from its end
STANDARD = ("time", "level", "service", "instance", "logger", "message", "exception")


def logs_of(data_dir: Path, service: str | None) -> list[Path]:
    """Files of one process, of all of a kind (`worker`), or of all.

    Raises:
        ConfigError: there is none; names those that there are.
    """
    paths = sorted((data_dir / "logs").glob("*.log"))
    found = [path for path in paths if service is None or is_called(path.stem, service)]
    if not found:
        names = ", ".join(path.stem for path in paths) or "none"
        raise ConfigError(
            f"no logs of {service or 'a deployment'} in {data_dir}: there are {names}"
        )
    return found


def show_logs(
    paths: Sequence[Path], num_lines: int, say: Callable[[str], None], *, follow: bool
) -> None:
    """Pass the last lines to `say`, in the order of their times, and if `follow` those to come."""
    width = max(len(path.stem) for path in paths)
    tails = [_Tail(path) for path in paths]
    lines = sorted((line for tail in tails for line in tail.read()), key=lambda line: line.time)
    for line in lines[max(len(lines) - num_lines, 0) :]:
        say(line.text(width))
    while follow:
        time.sleep(POLL_S)
        for line in sorted((new for tail in tails for new in tail.read()), key=lambda x: x.time):
            say(line.text(width))


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    time: str
    level: str
    message: str

    def text(self, width: int) -> str:
        level = "" if self.level in ("", "info") else f"{self.level.upper()} "
        return f"{self.time[11:23]:<12}  {self.name:<{width}}  {level}{self.message}"


@dataclass(slots=True)
class _Tail:
    path: Path
    _at: int | None = None  # read up to here
    _rest: bytes = b""
    _time: str = field(default="")  # of the last line that has one

    def read(self) -> Iterator[_Line]:
        """Whole lines that were not read yet."""
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            if self._at is None:
                self._at = max(size - READ_BYTES_MAX, 0)
            if size < self._at:  # it was copied aside and emptied
                self._at, self._rest = 0, b""
            file.seek(self._at)
            data = file.read(READ_BYTES_MAX)
            self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if text := line.decode(errors="replace").strip():
                yield self._parsed(text)

    def _parsed(self, text: str) -> _Line:
        try:
            record = json.loads(text)
            self._time = str(record["time"])
            message = str(record["message"])
        except (ValueError, KeyError, TypeError):  # of a server or a library
            return _Line(self.path.stem, self._time, "", text)
        fields = " ".join(f"{key}={record[key]}" for key in record if key not in STANDARD)
        trace = str(record.get("exception", ""))
        whole = "  ".join(filter(None, [message, fields])) + (f"\n{trace}" if trace else "")
        return _Line(self.path.stem, self._time, str(record.get("level", "")), whole)
