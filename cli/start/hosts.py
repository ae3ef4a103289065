"""The hosts of a deployment: machines as workers and kvstores see them, any number of them on this
one.

Processes that share memory are on one host. Each has a kvstore, and its own folder for that, on
disk and in memory; only what its workers read (models, and what was measured of them) is the
deployment's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from services.kvstore.config import KvstoreConfig
from shared.errors import ConfigError
from shared.ids import HostId
from shared.private import remove_unheld, unheld
from shared.runtime.config import load_config
from shared.runtime.settings import read_variables
from shared.runtime.urls import split_address

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host.

    Attributes:
        host_id: names its KV.
        data_dir: its kvstore's.
        number: in the names of its processes; empty: the deployment has no other host.
    """

    host_id: HostId
    data_dir: Path
    number: str = ""

    @property
    def arena_dir(self) -> Path:
        """Its shared memory."""
        return unheld(SHARED_MEMORY / f"symphony-{self.host_id}")

    def name_of(self, service: str, instance: int | None = None) -> str:
        """Name of one of its processes.

        >>> Host(host_id=HostId("h"), data_dir=Path("/d")).name_of("worker", 1)
        'worker-1'
        >>> Host(host_id=HostId("h"), data_dir=Path("/d"), number="0").name_of("worker", 1)
        'worker-0-1'
        """
        words = (service, self.number, "" if instance is None else str(instance))
        return "-".join(filter(None, words))


def make_hosts(first: HostId, data_dir: Path, num_hosts: int) -> tuple[Host, ...]:
    """The hosts of a deployment. The first is what the only one would be, so that what it has on
    disk is found again whatever their number is.

    Args:
        first: id of the first one.
        data_dir: the deployment's.
    """
    if num_hosts == 1:
        return (Host(host_id=first, data_dir=data_dir),)
    return tuple(
        Host(
            host_id=host_id,
            data_dir=data_dir / "hosts" / str(number) if number else data_dir,
            number=str(number),
        )
        for number, host_id in enumerate(make_host_ids(first, num_hosts))
    )


def make_host_ids(first: HostId, num_hosts: int) -> list[HostId]:
    """Ids of a deployment's hosts.

    >>> make_host_ids(HostId("here-1f"), 3)
    ['here-1f', 'here-1f-1', 'here-1f-2']
    """
    return [first, *(HostId(f"{first}-{number}") for number in range(1, num_hosts))]


def host_environment(host: Host, service: str) -> dict[str, str]:
    """Settings of a process of one host, beside those of all processes."""
    settings: dict[str, str] = {"SYMPHONY_HOST_ID": host.host_id}
    if service == "kvstore":
        settings["SYMPHONY_DATA_DIR"] = str(host.data_dir)
        settings["SYMPHONY_ARENA_DIR"] = str(host.arena_dir)
    return settings


def peering(num_hosts: int, secret_file: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Settings of each of several kvstores: by which they are each other's peers.

    Raises:
        ConfigError: a setting that may be one host's would be every host's.
    """
    if num_hosts == 1:
        return {}
    given = read_variables(environment)
    if "SYMPHONY_PEER_ADDRESS" in given:
        raise ConfigError(f"--hosts {num_hosts}: SYMPHONY_PEER_ADDRESS is that of one host")
    listen = load_config(KvstoreConfig, environment).peer_listen
    if split_address(listen)[1]:
        raise ConfigError(
            f"--hosts {num_hosts}: SYMPHONY_PEER_LISTEN={listen!r}: one port cannot serve them all:"
            " give port 0"
        )
    name = "SYMPHONY_PEER_SECRET_FILE"
    return {} if name in given else {name: str(secret_file)}


def remove_arenas(first: str) -> None:
    """Take away the shared memory of all hosts of a deployment, however many it had.

    Args:
        first: id of its first host.
    """
    own = re.compile(rf"symphony-{re.escape(first)}(-\d{{1,2}})?")
    folders = list(SHARED_MEMORY.glob(f"symphony-{escape(first)}*"))
    for folder in [SHARED_MEMORY / f"symphony-{first}", *folders]:
        if own.fullmatch(folder.name):
            remove_unheld(folder)
