"""Decisions of the kvstore: which page holds what, what is loaded next, what must go."""

from services.kvstore.core.arena_tier import Block
from services.kvstore.core.disk_tier import StoredBlock
from services.kvstore.core.effects import (
    BeginDiskAnew,
    BlockWrite,
    DeleteBlocks,
    Effect,
    IndexAdd,
    IndexRemove,
    LoadOutcome,
    LoadPages,
    PageLoad,
    SetWords,
    TouchBlocks,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.core.events import Commit, NewBlock, Open, Release, Renew, Stage, Staged
from services.kvstore.core.limits import Counts, Limits
from services.kvstore.core.store import KvCore

__all__ = [
    "BeginDiskAnew",
    "Block",
    "BlockWrite",
    "Commit",
    "Counts",
    "DeleteBlocks",
    "Effect",
    "IndexAdd",
    "IndexRemove",
    "KvCore",
    "Limits",
    "LoadOutcome",
    "LoadPages",
    "NewBlock",
    "Open",
    "PageLoad",
    "Release",
    "Renew",
    "SetWords",
    "Stage",
    "Staged",
    "StoredBlock",
    "TouchBlocks",
    "WriteBlocks",
    "WriteOutcome",
]
