"""KV on disk."""

from services.kvstore.disk.disk import ASIDE_NAME, Disk, set_aside, stored_bytes, throw_away
from services.kvstore.disk.errors import CorruptPage, DiskDamaged, DiskFailed, DiskFull
from services.kvstore.disk.index import DATA_NAME, Index
from services.kvstore.disk.reading import Reader, StoredPage
from services.kvstore.disk.records import BlockRecord
from services.kvstore.disk.scan import FOUND, FoundBlock, Scan, Slots
from services.kvstore.disk.slabs import whole_slots
from services.kvstore.disk.writing import Writer

__all__ = [
    "ASIDE_NAME",
    "DATA_NAME",
    "FOUND",
    "BlockRecord",
    "CorruptPage",
    "Disk",
    "DiskDamaged",
    "DiskFailed",
    "DiskFull",
    "FoundBlock",
    "Index",
    "Reader",
    "Scan",
    "Slots",
    "StoredPage",
    "Writer",
    "set_aside",
    "stored_bytes",
    "throw_away",
    "whole_slots",
]
