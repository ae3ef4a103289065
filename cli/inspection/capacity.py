"""How many tokens, and how many sessions, each tier of the KV cache holds of a model."""

from collections.abc import Sequence
from typing import Any

from shared.blocks import BLOCK_TOKENS
from shared.wire.messages import KvPool, KvStats

SESSION_TOKENS = 4000
SESSION_BLOCKS = -(-SESSION_TOKENS // BLOCK_TOKENS)
TIERS = {"pool": "KV pool", "arena": "host memory", "disk": "disk"}


def held(num_blocks: int) -> dict[str, int]:
    """Tokens, and sessions of `SESSION_TOKENS`, in so many blocks.

    >>> held(640)
    {'tokens': 40960, 'sessions': 10}
    """
    return {"tokens": num_blocks * BLOCK_TOKENS, "sessions": num_blocks // SESSION_BLOCKS}


def capacity_of(pools: Sequence[KvPool], stores: Sequence[KvStats]) -> list[dict[str, Any]]:
    """What all pools of each model hold, and all tiers below if they hold nothing else. Models
    whose pages are of one size share an arena, and all share the disks.
    """
    models: dict[str, list[KvPool]] = {}
    for pool in pools:
        models.setdefault(pool.model, []).append(pool)
    return [
        {"model": model, "pool": held(sum(each.num_blocks for each in of_model))}
        | _below(of_model[0], stores)
        for model, of_model in sorted(models.items())
    ]


def _below(pool: KvPool, stores: Sequence[KvStats]) -> dict[str, Any]:
    if not pool.num_layers or not pool.page_bytes:
        return {}
    block_bytes = pool.num_layers * pool.page_bytes
    arenas = (store.arena_bytes_max.get(str(pool.page_bytes), 0) for store in stores)
    return {
        "arena": held(sum(num_bytes // block_bytes for num_bytes in arenas)),
        "disk": held(sum(store.disk_bytes_max // block_bytes for store in stores)),
    }


def capacity_text(capacity: Sequence[dict[str, Any]]) -> str:
    """For people: a table.

    >>> print(capacity_text([{"model": "m", "pool": held(640)}]))
    tokens (sessions of 4,000) in      KV pool  host memory  disk
    m                              40,960 (10)            -     -
    """
    rows = [[f"tokens (sessions of {SESSION_TOKENS:,}) in", *TIERS.values()]]
    for each in capacity:
        cells = (each.get(tier) for tier in TIERS)
        rows.append([each["model"], *(_shown(cell) if cell else "-" for cell in cells)])
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        "  ".join([name.ljust(first), *(c.rjust(w) for c, w in zip(cells, others, strict=True))])
        for name, *cells in rows
    )


def capacity_line(row: dict[str, Any]) -> str:
    """One model, in a sentence. A pool of nothing is one of which the size is not known yet."""
    tiers = [f"{name} {_shown(row[tier])}" for tier, name in TIERS.items() if row[tier]["tokens"]]
    return f"tokens (sessions of {SESSION_TOKENS:,}) in {', '.join(tiers)}"


def _shown(cell: dict[str, int]) -> str:
    return f"{cell['tokens']:,} ({cell['sessions']:,})"
