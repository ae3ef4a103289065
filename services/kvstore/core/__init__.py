"""Decisions of the kvstore: which page holds what, what is loaded next, what must go."""

from services.kvstore.core.arena_block import ArenaBlock
from services.kvstore.core.arrivals import FetchedPages
from services.kvstore.core.arrived import Told
from services.kvstore.core.effects import (
    BeginDiskAnew,
    DeleteBlocks,
    DiskEffect,
    DiskWrite,
    DropMore,
    DropRuns,
    DropSession,
    Effect,
    LoadOutcome,
    ObjectEffect,
    PageReads,
    ReadPages,
    SaveOutcome,
    SaveRun,
    SetWords,
    TouchBlocks,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.core.events import (
    Commit,
    NewBlock,
    Offer,
    Open,
    Pinned,
    Release,
    Renew,
    Stage,
)
from services.kvstore.core.finding import sample_of
from services.kvstore.core.found_blocks import FoundBlocks, Shape
from services.kvstore.core.limits import Counts, Limits
from services.kvstore.core.locations import Locations, LocationUpdate
from services.kvstore.core.object_tier import LINKS_MAX
from services.kvstore.core.peers import most_offered
from services.kvstore.core.runs import (
    Place,
    Run,
    earlier_owners,
    find_places,
    folder_of,
    run_of,
)
from services.kvstore.core.store import KvCore
from services.kvstore.core.stored_block import StoredBlock

__all__ = [
    "LINKS_MAX",
    "ArenaBlock",
    "BeginDiskAnew",
    "Commit",
    "Counts",
    "DeleteBlocks",
    "DiskEffect",
    "DiskWrite",
    "DropMore",
    "DropRuns",
    "DropSession",
    "Effect",
    "FetchedPages",
    "FoundBlocks",
    "KvCore",
    "Limits",
    "LoadOutcome",
    "LocationUpdate",
    "Locations",
    "NewBlock",
    "ObjectEffect",
    "Offer",
    "Open",
    "PageReads",
    "Pinned",
    "Place",
    "ReadPages",
    "Release",
    "Renew",
    "Run",
    "SaveOutcome",
    "SaveRun",
    "SetWords",
    "Shape",
    "Stage",
    "StoredBlock",
    "Told",
    "TouchBlocks",
    "WriteBlocks",
    "WriteOutcome",
    "earlier_owners",
    "find_places",
    "folder_of",
    "most_offered",
    "run_of",
    "sample_of",
]
