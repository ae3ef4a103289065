"""``python -m cli.supervisor.asker SERVER ...``: asks every process of a deployment how it is, for
its supervisor.

A process of its own, which the supervisor reads: that is single-threaded, because it forks, and
must not wait for anybody. Each round is one JSON object a line; while the supervisor does not read,
the pipe fills and no process is asked.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from pydantic import TypeAdapter

from cli.base.config import LauncherConfig
from cli.base.reporting import quiet_libraries
from cli.supervisor.liveness import Answer, Round
from shared.bus import Bus
from shared.errors import PeerUnavailable
from shared.runtime.config import load_config_or_exit
from shared.wire.messages import Empty, ServiceStatus
from shared.wire.subjects import SERVICE_STATUS

ROUND = TypeAdapter(Round)
ANSWERS_MAX = 4096  # of one round: on a NATS of many deployments all of them answer
REPLY_BYTES_MAX = 1024


class Asker:
    """Asks, round after round.

    Args:
        servers: names of those that are the deployment's own: they are asked directly.
        report: called with a round when it is over.
    """

    def __init__(
        self, config: LauncherConfig, servers: Sequence[str], report: Callable[[Round], None]
    ) -> None:
        self._config = config
        urls = {"nats": config.nats_url, "redis": config.redis_url}
        self._servers = {name: urls[name] for name in servers}
        self._report = report
        self._bus: Bus | None = None
        self._ask: Callable[[Empty], Awaitable[None]] | None = None
        self._answers: set[Answer] = set()
        self._is_passed_on = False

    async def run(self) -> None:
        """Ask for ever."""
        connecting = asyncio.create_task(self._connect())
        try:
            while True:
                self._report(await self._round())
        finally:
            connecting.cancel()
            if self._bus is not None:
                await self._bus.drain()

    async def _connect(self) -> None:
        """Beside the rounds: it may take as long as it likes."""
        config = self._config
        bus = await Bus.connect(config.nats_url, "supervisor", config.nats_access, timeout_s=None)
        self._ask = await bus.survey(SERVICE_STATUS, self._on_status, self._on_echo)
        self._bus = bus

    async def _round(self) -> Round:
        began_ns = time.monotonic_ns()
        interval_s = self._config.status_interval_s
        # What is asked while NATS is away would be asked many times over later.
        if self._bus is not None and self._ask is not None and self._bus.connected:
            with suppress(PeerUnavailable):
                await self._ask(Empty())
        names = list(self._servers)
        _, *answers = await asyncio.gather(
            asyncio.sleep(interval_s),
            *(answers_at(self._servers[name], interval_s) for name in names),
        )
        services, self._answers = self._answers, set()
        is_passed_on, self._is_passed_on = self._is_passed_on, False
        return Round(
            lasted_ns=time.monotonic_ns() - began_ns,
            is_passed_on=is_passed_on,
            services=sorted(services, key=lambda answer: answer.pid),
            servers=[name for name, answer in zip(names, answers, strict=True) if answer],
        )

    def _on_status(self, status: ServiceStatus) -> None:
        if len(self._answers) < ANSWERS_MAX:
            self._answers.add(Answer(status.service, status.instance, status.pid, status.state))

    def _on_echo(self) -> None:
        self._is_passed_on = True


async def answers_at(url: str, timeout_s: float) -> bool:
    """Whether the NATS or Redis at `url` answers a client that connects: NATS speaks first. A
    refusal or a closed connection is an answer.
    """
    parts = urlsplit(url)
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            if parts.scheme == "unix":
                reader, writer = await asyncio.open_unix_connection(unquote(parts.path))
            else:
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            if parts.scheme != "nats":
                writer.write(b"PING\r\n")
            with suppress(ConnectionError):
                await reader.read(REPLY_BYTES_MAX)
            return True
    except OSError:  # a timeout is one
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


def main() -> None:
    """Ask until killed, or until the pipe is closed."""
    quiet_libraries()
    config = load_config_or_exit(LauncherConfig)

    def report(over: Round) -> None:
        os.write(sys.stdout.fileno(), ROUND.dump_json(over) + b"\n")

    asyncio.run(Asker(config, sys.argv[1:], report).run())


if __name__ == "__main__":
    main()
