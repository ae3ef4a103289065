"""KV on disk."""

from services.kvstore.disk.disk import (
    ASIDE_NAME,
    DATA_NAME,
    Disk,
    set_aside,
    stored_bytes,
    throw_away,
)
from services.kvstore.disk.errors import CorruptPage, DiskDamaged, DiskFailed, DiskFull
from services.kvstore.disk.reading import Reader, StoredPage
from services.kvstore.disk.records import BlockRecord
from services.kvstore.disk.scan import FoundBlock, Scan
from services.kvstore.disk.writing import Writer

__all__ = [
    "ASIDE_NAME",
    "DATA_NAME",
    "BlockRecord",
    "CorruptPage",
    "Disk",
    "DiskDamaged",
    "DiskFailed",
    "DiskFull",
    "FoundBlock",
    "Reader",
    "Scan",
    "StoredPage",
    "Writer",
    "set_aside",
    "stored_bytes",
    "throw_away",
]
