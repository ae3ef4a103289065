"""Settings of the kvstore."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from shared.adapters.record import ADAPTER_BYTES_MAX
from shared.runtime.config import ServiceConfig, constant
from shared.runtime.urls import split_address
from shared.wire.sessions import DEFAULT_EXPIRY_S

GIB = 1024**3
ANY_ADDRESS = ("0.0.0.0", "::")
ARENA_BYTES_MIN = 1024**2  # less holds no two blocks of any model of use


class KvstoreConfig(ServiceConfig):
    """Attributes:
    arena_dir: where the arenas are; must be memory. ``/dev/shm/symphony-<host_id>`` by default.
    arena_bytes: of each arena (one a page size), capped to what fits; 0: `tier_sizes` decides.
    disk_bytes_max: blocks on disk occupy at most about this; 0: `tier_sizes` decides.
    disk_bytes_per_s: written to the disk, on average; 0: any number.
    expiry_s: blocks unused for this long are deleted.
    peer_secret_file: a secret that all hosts share; without it no KV goes from host to host.
    peer_listen: address and port where other hosts fetch KV; port 0: a free one.
    peer_address: how other hosts reach that, if not as it is written there.
    peer_bytes_per_s: sent to all other hosts together; 0: any number.
    peer_cert_file, peer_key_file: PEM files: KV is sent through TLS.
    peer_ca_file: certificates to trust: KV is fetched through TLS.
    objects_url: the object store that all hosts share, ``s3://bucket/prefix``.
    objects_bytes_max: this host's objects there take at most about this.
    objects_expiry_s: sessions unused for this long are deleted there.
    objects_bytes_per_s: written there, on average; 0: any number.
    objects_compression: of what is written there; both kinds are read.
    adapter_dirs: folders from which clients with the right to load adapters may load them.
    adapter_bytes_max: of one adapter's files.
    tenant_adapter_bytes_max: of one tenant, on this host; 0: any number.
    adapter_disk_bytes_max: of all tenants together, on this host; 0: any number.
    """

    arena_dir: Path | None = None
    arena_bytes: int = Field(default=0, ge=0)
    disk_bytes_max: int = Field(default=0, ge=0)
    disk_bytes_per_s: float = Field(default=0.0, ge=0)
    expiry_s: float = Field(default=float(DEFAULT_EXPIRY_S), gt=0)
    peer_secret_file: Path | None = None
    peer_listen: str = "127.0.0.1:0"
    peer_address: str | None = None
    peer_bytes_per_s: float = Field(default=0.0, ge=0)
    peer_cert_file: Path | None = None
    peer_key_file: Path | None = None
    peer_ca_file: Path | None = None
    objects_url: str | None = None
    objects_bytes_max: int = Field(default=1024 * GIB, gt=0)
    objects_expiry_s: float = Field(default=float(DEFAULT_EXPIRY_S), gt=0)
    objects_bytes_per_s: float = Field(default=0.0, ge=0)
    objects_compression: Literal["none", "zstd"] = "none"
    adapter_dirs: list[Path] = Field(default_factory=list)
    adapter_bytes_max: int = Field(default=ADAPTER_BYTES_MAX, gt=0)
    tenant_adapter_bytes_max: int = Field(default=64 * GIB, ge=0)
    adapter_disk_bytes_max: int = Field(default=256 * GIB, ge=0)

    # Names of adapters on a host, of all tenants and of one: each takes memory. 0: any number, for
    # `bench adapters`.
    adapters_max: int = constant(100_000)
    tenant_adapters_max: int = constant(10_000)
    # Files of an adapter without a name stay for turns that run: longer than a turn may last.
    adapter_keep_s: float = constant(7200.0)
    # Read from the disk, in 1e6 bytes/s; 0: as fast as it is.
    disk_read_mb_s: float = constant(0.0)
    # Of this deployment on this machine, which share what sizes are decided by: `up --hosts`.
    num_hosts_here: int = constant(1)
    # A session is written to the object store when it got no new blocks for this long.
    objects_rest_s: float = constant(30.0)

    @field_validator("arena_bytes")
    @classmethod
    def _arena_of_use(cls, value: int) -> int:
        if 0 < value < ARENA_BYTES_MIN:
            raise ValueError(f"is 0, or at least {ARENA_BYTES_MIN}")
        return value

    @field_validator("peer_secret_file", "peer_cert_file", "peer_key_file", "peer_ca_file")
    @classmethod
    def _expand_peer_file(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser()

    @field_validator("objects_url")
    @classmethod
    def _no_objects(cls, value: str | None) -> str | None:
        return value or None  # compose passes a variable that is not set as an empty one

    @field_validator("peer_listen", "peer_address")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            split_address(value)
        return value

    @model_validator(mode="after")
    def _can_be_reached(self) -> "KvstoreConfig":
        files = (self.peer_cert_file, self.peer_key_file, self.peer_ca_file)
        if None in files and any(files):
            raise ValueError(
                "SYMPHONY_PEER_CERT_FILE, SYMPHONY_PEER_KEY_FILE and SYMPHONY_PEER_CA_FILE go"
                " together"
            )
        is_anywhere = split_address(self.peer_listen)[0] in ANY_ADDRESS
        if self.peer_secret_file is not None and is_anywhere and self.peer_address is None:
            raise ValueError(
                "SYMPHONY_PEER_ADDRESS must say how others reach this host, if"
                f" SYMPHONY_PEER_LISTEN is {self.peer_listen}"
            )
        return self

    @property
    def arena_path(self) -> Path:
        """`arena_dir`, or its default."""
        return self.arena_dir or Path(f"/dev/shm/symphony-{self.host_id}")

    @property
    def disk_path(self) -> Path:
        """Folder of the index and the slabs."""
        return self.data_dir / "kv"

    @property
    def adapters_path(self) -> Path:
        """Folder of the adapters' files."""
        return self.data_dir / "adapters"
