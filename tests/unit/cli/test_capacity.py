"""How many tokens and sessions tiers hold."""

from cli.inspection.capacity import capacity_line, capacity_of, capacity_text, held
from shared.wire.messages import KvPool, KvStats

BLOCK_BYTES = 4 * 1000


def pool(model: str, num_blocks: int, page_bytes: int = 1000) -> KvPool:
    return KvPool(model=model, num_blocks=num_blocks, num_layers=4, page_bytes=page_bytes)


def test_tiers_of_all_hosts_hold_a_model_in_whole_blocks() -> None:
    arena = {"1000": 63 * BLOCK_BYTES + 3999, "2000": 1 << 40}
    host = KvStats(arena_bytes_max=arena, disk_bytes_max=126 * BLOCK_BYTES + 3999)
    assert capacity_of([pool("b", 10), pool("a", 5, 2000), pool("b", 20)], [host, host])[1] == {
        "model": "b", "pool": held(30), "arena": held(126), "disk": held(252),
    }  # fmt: skip


def test_a_pool_alone_is_shown_where_nothing_goes_below() -> None:
    rows = capacity_of([KvPool(model="m", num_blocks=640)], [KvStats(disk_bytes_max=1 << 40)])
    assert rows == [{"model": "m", "pool": held(640)}]
    assert capacity_text(rows).splitlines()[1].split() == ["m", "40,960", "(10)", "-", "-"]


def test_a_session_is_held_whole() -> None:
    assert [held(num)["sessions"] for num in (62, 63, 125, 126)] == [0, 1, 1, 2]


def test_a_tier_of_unknown_size_is_left_out() -> None:
    (row,) = capacity_of([pool("m", 0)], [KvStats(disk_bytes_max=126 * BLOCK_BYTES)])
    assert capacity_line(row) == "tokens (sessions of 4,000) in disk 8,064 (2)"
