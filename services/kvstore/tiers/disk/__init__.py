"""KV on disk."""

from services.kvstore.tiers.disk.disk import ASIDE_NAME, Disk, set_aside, stored_bytes, throw_away
from services.kvstore.tiers.disk.errors import CorruptPage, DiskDamaged, DiskFailed, DiskFull
from services.kvstore.tiers.disk.index import DATA_NAME, Index
from services.kvstore.tiers.disk.ports import BlockReader, BlockStore, BlockWriter
from services.kvstore.tiers.disk.reading import Reader, StoredPage
from services.kvstore.tiers.disk.records import BlockRecord
from services.kvstore.tiers.disk.scan import FOUND, FoundBlock, Scan, Slots
from services.kvstore.tiers.disk.slabs import whole_slots
from services.kvstore.tiers.disk.writing import Writer

__all__ = [
    "ASIDE_NAME",
    "DATA_NAME",
    "FOUND",
    "BlockReader",
    "BlockRecord",
    "BlockStore",
    "BlockWriter",
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
