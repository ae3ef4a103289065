"""What a machine has for the tiers of a host, and how large they are to be."""

import shutil
from pathlib import Path

from services.kvstore.config import KvstoreConfig
from services.kvstore.core.base.tier_sizes import Room, TierSizes, tier_sizes
from shared.errors import ConfigError, NoCapacity
from shared.runtime.memory import measure_memory

BLOCK_BYTES = 512  # in which `stat` counts what a file occupies


def decide_sizes(config: KvstoreConfig) -> TierSizes:
    """How large the tiers would be if the kvstore started now.

    Raises:
        ConfigError: a file system cannot be asked, or has no room; names the setting.
    """
    try:
        folder, name = config.arena_path, "SYMPHONY_ARENA_DIR"
        shared = shutil.disk_usage(_existing(folder))
        folder, name = config.data_dir, "SYMPHONY_DATA_DIR"
        room = Room(
            memory=measure_memory(),
            shared_bytes=shared.total,
            shared_free_bytes=shared.free,
            disk_free_bytes=shutil.disk_usage(_existing(folder)).free,
            disk_kv_bytes=_bytes_in(config.disk_path),
            num_hosts=config.num_hosts_here,
        )
    except OSError as error:
        raise ConfigError(f"{name}={str(folder)!r}: {error.strerror}") from None
    try:
        return tier_sizes(room, config.arena_bytes, config.disk_bytes_max)
    except NoCapacity as error:
        raise ConfigError(
            f"SYMPHONY_ARENA_DIR={str(config.arena_path)!r}: {error.message}"
        ) from None


def _existing(folder: Path) -> Path:
    """It, or the folder in which it will be made."""
    return next((each for each in (folder, *folder.parents) if each.exists()), folder)


def _bytes_in(folder: Path) -> int:
    """What files occupy there, holes left out."""
    return sum(path.lstat().st_blocks * BLOCK_BYTES for path in folder.glob("*"))
