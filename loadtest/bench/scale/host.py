"""NATS, Redis, a scheduler, and the kvstore that is measured, as processes."""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from cli.base.children import (
    start_child,
    stop_child,
)
from cli.base.runfile import RunningService, RunState
from cli.inspection.description import describe
from cli.inspection.snapshot import take_snapshot
from cli.inspection.status import render
from loadtest.bench.lab import start_servers
from loadtest.bench.scale.watched import BEATS_NAME, Beat, read_beats
from shared.bus import Bus
from shared.errors import NobodyListens, PeerUnavailable
from shared.ids import HostId
from shared.locations import KV_HOSTS_KEY, decode_claim
from shared.runtime.redis_client import RedisClient
from shared.runtime.settings import as_variables
from shared.wire.messages import Empty, KvStats
from shared.wire.subjects import KV_STATS, SCHEDULER_STATUS

HOST_ID = HostId("scale")
START_LIMIT_S = 1800.0
POLL_S = 0.05
STOP_S = 60.0
COUNTED_LIMIT_S = 60.0
TIMEOUT_S = 30.0
RECORDS_AT_ONCE = 1000
MIB = 1024**2


class ScaleHost:
    """See the module. Make with `open_host`.

    Attributes:
        directory: of everything.
    """

    def __init__(
        self, directory: Path, bus: Bus, env: dict[str, str], pids: dict[str, int]
    ) -> None:
        self.directory = directory
        self.bus = bus
        self.redis: Any = RedisClient(env["SYMPHONY_REDIS_URL"], None, timeout_s=TIMEOUT_S)
        self._env = env
        self._pids = pids
        self._kvstore: subprocess.Popen[bytes] | None = None
        self._beats = directory / "beats"
        self._phases: list[tuple[str, float, float]] = []

    async def start(self, data_dir: Path, settings: Mapping[str, str]) -> float:
        """Start the kvstore on this folder; seconds until it answers."""
        log_path = self.directory / "kvstore.log"
        env = {
            **self._env,
            "SYMPHONY_DATA_DIR": str(data_dir),
            BEATS_NAME: str(self._beats),
            **as_variables(settings, self._env),
        }
        began_s = time.monotonic()
        command = [sys.executable, "-m", "loadtest.bench.scale.watched"]
        child = self._kvstore = start_child(command, log_path=log_path, env=env)
        self._pids["kvstore"] = child.pid
        while not await self.bus.gather(KV_STATS, Empty(), timeout_s=TIMEOUT_S, num_max=1):
            if child.poll() is not None:
                last = log_path.read_text().strip().splitlines()[-1:]
                raise PeerUnavailable(f"the kvstore ended with status {child.returncode}: {last}")
            if time.monotonic() - began_s > START_LIMIT_S:
                raise PeerUnavailable(f"the kvstore was not there in {START_LIMIT_S:g} s")
            await asyncio.sleep(POLL_S)
        return time.monotonic() - began_s

    def stop(self) -> None:
        """Stop the kvstore, if it runs."""
        if self._kvstore is not None:
            stop_child(self._kvstore, grace_s=STOP_S)
            self._kvstore = None

    async def stats(self) -> KvStats:
        """What the kvstore holds."""
        found = await self.bus.gather(KV_STATS, Empty(), timeout_s=TIMEOUT_S, num_max=1)
        if not found:
            raise PeerUnavailable("the kvstore does not answer")
        return found[0]

    def memory(self) -> dict[str, int]:
        """Bytes of the kvstore's process: ``rss``, and of those ``anon``, which no file holds."""
        assert self._kvstore is not None, "it runs"
        lines = Path(f"/proc/{self._kvstore.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return {
            name: int(fields[field].split()[0]) * 1024
            for name, field in (("rss", "VmRSS"), ("anon", "RssAnon"))
        }

    async def redis_bytes(self) -> int:
        """That Redis uses."""
        found: int = (await self.redis.info("memory"))["used_memory"]
        return found

    async def write_records(self, records: Iterator[tuple[str, bytes]]) -> None:
        """As frontends do, many at a time."""
        while some := dict(islice(records, RECORDS_AT_ONCE)):
            await self.redis.mset(some)

    async def wait_told(self, num_sessions: int) -> float:
        """Until Redis knows where all sessions' KV is; seconds."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < START_LIMIT_S:
            claim = decode_claim(await self.redis.hget(KV_HOSTS_KEY, HOST_ID))
            if claim is not None and claim.num_sessions == num_sessions:
                return time.monotonic() - began_s
            await asyncio.sleep(POLL_S)
        raise PeerUnavailable("Redis was not sent where sessions' KV is")

    async def wait_counted(self, num_sessions: int) -> None:
        """Until the kvstore has counted the sessions' records."""
        began_s = time.monotonic()
        while (await self.stats()).num_sessions != num_sessions:
            if time.monotonic() - began_s > COUNTED_LIMIT_S:
                raise PeerUnavailable("the kvstore counted other sessions than there are")
            await asyncio.sleep(POLL_S)

    async def status_ms(self, times: int) -> float:
        """What `symphony status` takes to ask everybody and to say it, median."""
        run = RunState(
            pid=os.getpid(), state="ready", url="http://127.0.0.1",
            nats_url=self._env["SYMPHONY_NATS_URL"], redis_url=self._env["SYMPHONY_REDIS_URL"],
            host_id=HOST_ID, num_workers=0, names=list(self._pids),
            services=[RunningService(name=name, pid=pid) for name, pid in self._pids.items()],
        )  # fmt: skip
        took_ms = []
        for _ in range(times):
            began_s = time.perf_counter()
            report = describe(run, await take_snapshot(run))
            render(report)
            took_ms.append((time.perf_counter() - began_s) * 1e3)
            if report["state"] != "ready":
                raise PeerUnavailable(f"the deployment is {report['state']}: {report['reasons']}")
        return statistics.median(took_ms)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What the body does is counted apart from the rest."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._phases.append((name, began_s, time.monotonic()))

    def beats(self) -> dict[str, list[Beat]]:
        """Beats of the kvstore's loop that came late, by the phase in which they ended."""
        beats = list(read_beats(self._beats))
        found: dict[str, list[Beat]] = {}
        for name, began_s, ended_s in self._phases:
            mine = [beat for beat in beats if began_s <= beat.at_s < ended_s]
            found.setdefault(name, []).extend(mine)
        return found


@asynccontextmanager
async def open_host(directory: Path) -> AsyncIterator[ScaleHost]:
    """NATS, Redis and a scheduler; the kvstore is started by the caller."""
    with ExitStack() as stack:
        servers = start_servers(stack, directory)
        env = {
            **os.environ,
            **servers.env,
            "SYMPHONY_HOST_ID": HOST_ID,
            "SYMPHONY_DATA_DIR": str(directory),
            "SYMPHONY_ARENA_DIR": f"/dev/shm/{directory.name}",
        }
        scheduler = start_child(
            [sys.executable, "-m", "services.scheduler"],
            log_path=directory / "scheduler.log", env=env,
        )  # fmt: skip
        stack.callback(stop_child, scheduler)
        pids = {"nats": servers.nats.pid, "redis": servers.redis.pid, "scheduler": scheduler.pid}
        bus = await Bus.connect(env["SYMPHONY_NATS_URL"], "scale")
        host = ScaleHost(directory, bus, env, pids)
        stack.callback(host.stop)
        await _wait_for_scheduler(bus)
        yield host
        await host.redis.aclose()
        await bus.drain()


async def _wait_for_scheduler(bus: Bus) -> None:
    try:
        await bus.request(SCHEDULER_STATUS, Empty(), timeout_s=TIMEOUT_S, grace_s=TIMEOUT_S)
    except NobodyListens:
        raise PeerUnavailable("the scheduler was not there in time") from None
