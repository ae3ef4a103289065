"""What workers of a deployment count of adapters, over the deaths of workers."""

import asyncio
import socket
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from cli.base.children import free_port

LOOK_EVERY_S = 0.25
TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Counts:
    """Attributes:
    starts: first tokens on adapters, by how their turns came to them.
    loads: adapters that came, by where from.
    """

    starts: Counter[str] = field(default_factory=Counter)
    loads: Counter[str] = field(default_factory=Counter)

    def __add__(self, more: "Counts") -> "Counts":
        return Counts(self.starts + more.starts, self.loads + more.loads)

    def __sub__(self, before: "Counts") -> "Counts":
        return Counts(self.starts - before.starts, self.loads - before.loads)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """What machines read."""
        return {"starts": dict(self.starts), "loads": dict(self.loads)}


@dataclass(slots=True)
class _Seen:
    """What one worker last said.

    Attributes:
        begun_at: when its process began.
        awaited: adapters that turns waited for.
    """

    begun_at: float = 0.0
    counts: Counts = field(default_factory=Counts)
    awaited: tuple[str, ...] = ()


class Watch:
    """Adds up what workers say.

    Args:
        ports: of their metrics.

    Attributes:
        counts: all until now, but for what a worker counted in its last moments.
    """

    def __init__(self, ports: Sequence[int] = ()) -> None:
        self._ports = ports
        self._seen = [_Seen() for _ in ports]
        self.counts = Counts()

    @property
    def is_open(self) -> bool:
        """Whether there is anybody to ask."""
        return bool(self._ports)

    async def look(self) -> None:
        """Ask all that are there."""
        for number, port in enumerate(self._ports):
            try:
                text = await asyncio.to_thread(_read, port)
            except OSError:  # it is not there, or stands still
                self._seen[number].awaited = ()
                continue
            self.take(number, text)

    def take(self, number: int, text: str) -> None:
        """What a worker says."""
        before, now = self._seen[number], _parse(text)
        self._seen[number] = now
        is_same = before.begun_at == now.begun_at
        self.counts += now.counts - before.counts if is_same else now.counts

    def num_awaited(self, worker: int | None = None) -> int:
        """Adapters that turns of one worker, or of any, wait for."""
        seen = self._seen if worker is None else self._seen[worker : worker + 1]
        return sum(len(each.awaited) for each in seen)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look again and again."""

        async def go_on() -> None:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_EVERY_S)

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def free_ports(num: int) -> range:
    """Free ports that follow each other.

    Raises:
        OSError: there are none.
    """
    for _ in range(TRIES_MAX):
        ports = range(first := free_port(), first + num)
        if ports[-1] < 1 << 16 and all(_is_free(port) for port in ports):
            return ports
    raise OSError(f"no {num} free ports that follow each other")


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1.0) as response:
        return bytes(response.read()).decode()


def _parse(text: str) -> _Seen:
    begun_at, awaited = 0.0, ""
    starts, loads = Counter[str](), Counter[str]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            match sample.name:
                case "process_start_time_seconds":
                    begun_at = sample.value
                case "symphony_lora_requests_info":
                    awaited = sample.labels["waiting_lora_adapters"]
                case "symphony_adapter_first_token_seconds_count":
                    starts[sample.labels["start"]] += int(sample.value)
                case "symphony_adapter_load_seconds_count":
                    loads[sample.labels["source"]] += int(sample.value)
    return _Seen(begun_at, Counts(starts, loads), tuple(filter(None, awaited.split(","))))
