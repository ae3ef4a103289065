"""Settings of the kvstore."""

from pathlib import Path

from pydantic import Field

from shared.config import ServiceConfig
from shared.sessions import DEFAULT_EXPIRY_S

GIB = 1024**3
ARENA_BYTES_MIN = 1024**2  # less holds no two blocks of any model of use


class KvstoreConfig(ServiceConfig):
    """Attributes:
    arena_dir: where the arenas are; must be memory. ``/dev/shm/symphony-<host_id>`` by default.
    arena_bytes: of each arena (one a page size), capped to what fits.
    disk_bytes_max: blocks on disk occupy at most about this.
    expiry_s: blocks unused for this long are deleted.
    """

    arena_dir: Path | None = None
    arena_bytes: int = Field(default=512 * 1024**2, ge=ARENA_BYTES_MIN)
    disk_bytes_max: int = Field(default=16 * GIB, gt=0)
    expiry_s: float = Field(default=float(DEFAULT_EXPIRY_S), gt=0)

    @property
    def arena_path(self) -> Path:
        """`arena_dir`, or its default."""
        return self.arena_dir or Path(f"/dev/shm/symphony-{self.host_id}")

    @property
    def disk_path(self) -> Path:
        """Folder of the LMDB files."""
        return self.data_dir / "kv"
