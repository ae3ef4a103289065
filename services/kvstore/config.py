"""Settings of the kvstore."""

from pathlib import Path

from pydantic import Field

from shared.adapters.record import ADAPTER_BYTES_MAX
from shared.config import ServiceConfig
from shared.eviction import EvictionName
from shared.sessions import DEFAULT_EXPIRY_S

GIB = 1024**3
ARENA_BYTES_MIN = 1024**2  # less holds no two blocks of any model of use


class KvstoreConfig(ServiceConfig):
    """Attributes:
    arena_dir: where the arenas are; must be memory. ``/dev/shm/symphony-<host_id>`` by default.
    arena_bytes: of each arena (one a page size), capped to what fits.
    disk_bytes_max: blocks on disk occupy at most about this.
    expiry_s: blocks unused for this long are deleted.
    eviction: which pages of an arena make room, see `shared.eviction`.
    adapter_dirs: folders that adapters may be loaded from, by whoever may load some.
    adapter_bytes_max: of one adapter's files.
    adapter_header_bytes_max, adapter_tensors_max: of the file that holds its weights.
    tenant_adapters_max, tenant_adapter_bytes_max: of one tenant, on this host; 0: any number.
    adapters_max, adapter_disk_bytes_max: of all tenants together, on this host; 0: any number.
    adapter_keep_s: how long an adapter's files stay that no name points to; longer than a turn may
        last.
    """

    arena_dir: Path | None = None
    arena_bytes: int = Field(default=512 * 1024**2, ge=ARENA_BYTES_MIN)
    disk_bytes_max: int = Field(default=16 * GIB, gt=0)
    expiry_s: float = Field(default=float(DEFAULT_EXPIRY_S), gt=0)
    eviction: EvictionName = "layer"
    adapter_dirs: list[Path] = Field(default_factory=list)
    adapter_bytes_max: int = Field(default=ADAPTER_BYTES_MAX, gt=0)
    adapter_header_bytes_max: int = Field(default=4 * 1024**2, gt=0)
    adapter_tensors_max: int = Field(default=16_384, gt=0)
    tenant_adapters_max: int = Field(default=10_000, ge=0)
    tenant_adapter_bytes_max: int = Field(default=64 * GIB, ge=0)
    adapters_max: int = Field(default=100_000, ge=0)
    adapter_disk_bytes_max: int = Field(default=256 * GIB, ge=0)
    adapter_keep_s: float = Field(default=7200.0, ge=0)

    @property
    def arena_path(self) -> Path:
        """`arena_dir`, or its default."""
        return self.arena_dir or Path(f"/dev/shm/symphony-{self.host_id}")

    @property
    def disk_path(self) -> Path:
        """Folder of the LMDB files."""
        return self.data_dir / "kv"

    @property
    def adapters_path(self) -> Path:
        """Folder of the adapters' files."""
        return self.data_dir / "adapters"
