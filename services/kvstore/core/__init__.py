"""Decisions of the kvstore: which page holds what, what is loaded next, what must go."""

from services.kvstore.core.base.arrived import PageFacts
from services.kvstore.core.base.effects import (
    DeleteBlocks,
    DiskEffect,
    DiskWrite,
    DoMore,
    DropRuns,
    DropSession,
    Effect,
    GrowArena,
    LoadOutcome,
    ObjectEffect,
    PageReads,
    ReadPages,
    ResetDisk,
    SaveOutcome,
    SaveRun,
    SetWords,
    TouchBlocks,
    WriteBlocks,
    WriteOutcome,
)
from services.kvstore.core.base.events import (
    Commit,
    NewBlock,
    Open,
    Pinned,
    Release,
    RemotePrefix,
    Renew,
    Stage,
)
from services.kvstore.core.base.runs import (
    Place,
    Run,
    earlier_owners,
    find_places,
    folder_of,
    run_of,
)
from services.kvstore.core.base.store_limits import Counts, Limits
from services.kvstore.core.disk.found_blocks import FoundBlocks, Shape
from services.kvstore.core.disk.stored_block import StoredBlock
from services.kvstore.core.exchange import Exchange
from services.kvstore.core.loading.concurrency import Concurrency
from services.kvstore.core.loading.finding import sample_of
from services.kvstore.core.loading.peers import most_offered
from services.kvstore.core.store import KvCore, Usage
from services.kvstore.core.tiers.arena_block import ArenaBlock
from services.kvstore.core.tiers.locations import Locations, LocationUpdate
from services.kvstore.core.tiers.object_tier import LINKS_MAX
from services.kvstore.core.writing.arrivals import FetchedPages

__all__ = [
    "LINKS_MAX",
    "ArenaBlock",
    "Commit",
    "Concurrency",
    "Counts",
    "DeleteBlocks",
    "DiskEffect",
    "DiskWrite",
    "DoMore",
    "DropRuns",
    "DropSession",
    "Effect",
    "Exchange",
    "FetchedPages",
    "FoundBlocks",
    "GrowArena",
    "KvCore",
    "Limits",
    "LoadOutcome",
    "LocationUpdate",
    "Locations",
    "NewBlock",
    "ObjectEffect",
    "Open",
    "PageFacts",
    "PageReads",
    "Pinned",
    "Place",
    "ReadPages",
    "Release",
    "RemotePrefix",
    "Renew",
    "ResetDisk",
    "Run",
    "SaveOutcome",
    "SaveRun",
    "SetWords",
    "Shape",
    "Stage",
    "StoredBlock",
    "TouchBlocks",
    "Usage",
    "WriteBlocks",
    "WriteOutcome",
    "earlier_owners",
    "find_places",
    "folder_of",
    "most_offered",
    "run_of",
    "sample_of",
]
