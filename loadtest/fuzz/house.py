"""A house of real processes with the demo model, for strangers and faults to be let loose on."""

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
from nats.aio.client import Client

from cli.runfile import running_house
from cli.start.credentials import nkey_file
from cli.supervisor.children import free_port
from shared.errors import PeerUnavailable
from shared.ids import DEFAULT_TENANT, TenantId

MODEL = "demo"


@dataclass(frozen=True, slots=True)
class House:
    """Attributes:
    directory: its data folder.
    port: of its frontend, on loopback.
    """

    directory: Path
    port: int

    @property
    def url(self) -> str:
        """Where its frontend is."""
        return f"http://127.0.0.1:{self.port}"

    def pids(self) -> dict[str, int]:
        """Its processes by name; another number under a name is another process."""
        return {service.name: service.pid for service in running_house(self.directory).services}

    @property
    def nats_url(self) -> str:
        """Where its NATS is."""
        return running_house(self.directory).nats_url

    @asynccontextmanager
    async def nats(self, tenant: TenantId = DEFAULT_TENANT) -> AsyncIterator[Client]:
        """A plain client of its NATS, as an agent framework of this tenant has one. Its inboxes
        begin with ``_INBOX.`` and the tenant.
        """
        seed = nkey_file(self.directory / "credentials", tenant)
        client = await nats.connect(
            self.nats_url, nkeys_seed=str(seed), inbox_prefix=f"_INBOX.{tenant}"
        )
        try:
            yield client
        finally:
            await client.close()


@contextmanager
def open_house(settings: Mapping[str, str], *options: str, model: str = MODEL) -> Iterator[House]:
    """A house of its own in a folder of its own, stopped and removed at the end.

    Args:
        settings: variables of its services.
        options: more of `up`.
        model: that is served, as `up` takes it; empty: `options` say.

    Raises:
        PeerUnavailable: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="symphony-fuzz-") as name:
        port = free_port()
        up = ["up", "--port", str(port), "--data-dir", name, "--detach"]
        served = ["--model", model] if model else []
        if _cli(*up, *served, *options, settings=settings):
            raise PeerUnavailable("the house did not come up")
        try:
            yield House(Path(name), port)
        finally:
            _cli("down", "--data-dir", name, settings={})


def _cli(*arguments: str, settings: Mapping[str, str]) -> int:
    command = [sys.executable, "-m", "cli.main", *arguments]
    env = os.environ | settings
    return subprocess.run(command, check=False, stdout=sys.stderr, env=env).returncode
