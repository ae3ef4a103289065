"""What `symphony up` was asked for, and what follows from that alone."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from cli.adapters.offered import Offer
from cli.start.hosts import Host, make_hosts
from shared.ids import HostId
from shared.private import remove_unheld, unheld
from shared.runtime.config import default_host_id

SOCKET_PATH_BYTES_MAX = 107  # what the kernel takes
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """The options of a deployment.

    Attributes:
        models: what was asked for, or once that is prepared folders (absolute) and hub ids; none:
            the default.
        adapters: that everybody may use, once the deployment stands.
        num_hosts: on this machine, each with a kvstore.
        num_workers: of each host.
        emulate: latency profile of emulated workers; None: real ones.
        has_true_pages: emulated pages are as large as the profile's model would have them.
        num_spares: hot spares of each process of the scheduler and of the tracker.
        num_shards: processes among which turns and one-shot models are divided; 1: one scheduler
            does all.
        num_tracker_shards: processes among which the tracker divides sessions and workflows.
        served_names: other names of models, see `services.frontend.core.models.model_names`.
        max_model_len: tokens of a prompt and its reply together; None: what the setting says.
        dtype: that models compute in; None: what the setting says.
        engine: what computes generative models.
        worker_python: that workers run in; empty: as the other services.
        allow_hosts: more names by which the frontend is reached; none: what its setting says.
        cors_origins: of web pages that may use it; none: what its setting says.
        nats_url, redis_url: running servers to use; None: start our own.
        nats_port: of our own NATS; None: a free one.
        restart: whether a child that dies is started again.
        ready_timeout_s: how long the start may take.
    """

    data_dir: Path
    models: tuple[str, ...] = ()
    num_hosts: int = 1
    num_workers: int = 1
    emulate: str | None = None
    has_true_pages: bool = False
    adapters: tuple[Offer, ...] = ()
    num_spares: int = 0
    num_shards: int = 1
    num_tracker_shards: int = 1
    host: str = "127.0.0.1"
    port: int = 8080
    served_names: tuple[str, ...] = ()
    max_model_len: int | None = None
    dtype: str | None = None
    engine: Literal["symphony", "vllm"] = "symphony"
    worker_python: str = ""
    allow_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    nats_url: str | None = None
    redis_url: str | None = None
    nats_port: int | None = None
    restart: bool = True
    ready_timeout_s: float = 900.0

    def dump(self) -> bytes:
        """As JSON, for another process of ours."""
        return _OPTIONS.dump_json(self)

    @staticmethod
    def parse(dumped: bytes) -> "DeploymentOptions":
        """What was dumped."""
        return _OPTIONS.validate_json(dumped)

    @property
    def url(self) -> str:
        """Where to reach the frontend from this machine."""
        address = _ANY_ADDRESS.get(self.host, self.host)
        return (
            f"http://[{address}]:{self.port}" if ":" in address else f"http://{address}:{self.port}"
        )

    @property
    def host_id(self) -> HostId:
        """Names the KV of this deployment's first host; the same at every start on this data
        folder, and no other's.
        """
        digest = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:8]
        return HostId(f"{default_host_id()[:48]}-{digest}")

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All of them, the first one first."""
        return make_hosts(self.host_id, self.data_dir, self.num_hosts)

    @property
    def num_workers_in_all(self) -> int:
        """Workers of all hosts."""
        return self.num_hosts * self.num_workers

    @property
    def credentials_dir(self) -> Path:
        """Secrets of this deployment's own servers."""
        return self.data_dir / "credentials"

    @property
    def supervisor_log(self) -> Path:
        """What a detached supervisor says."""
        return self.data_dir / "logs" / "supervisor.log"

    @property
    def redis_socket(self) -> Path:
        """Where our own Redis listens: in its folder, or elsewhere if that path is too long."""
        path = self.data_dir / "redis" / "redis.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        place = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        digest = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:16]
        return unheld(Path(place) / f"symphony-{os.geteuid()}-{digest}") / "redis.sock"

    def remove_socket(self) -> None:
        """Take the folder of `redis_socket` away if it is not in the data folder."""
        if not self.redis_socket.is_relative_to(self.data_dir):
            remove_unheld(self.redis_socket.parent)


_OPTIONS = TypeAdapter(DeploymentOptions)
