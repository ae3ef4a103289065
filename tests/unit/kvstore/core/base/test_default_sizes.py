"""How large the tiers of a host are by default, from what was measured of its machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstore.core.base.tier_sizes import (
    ARENA_BYTES_MIN,
    DISK_BYTES_MAX,
    MIB,
    Room,
    may_grow,
    num_pages_ahead,
    tier_sizes,
)
from shared.errors import NoCapacity
from shared.runtime.memory import Memory

GIB = 1024 * MIB
SIZES = st.integers(0, 1 << 45)


def room(**changes: int) -> Room:
    """A machine of 64 GiB, as it is when nothing runs."""
    found = {
        "total": 64 * GIB, "available": 60 * GIB, "shared": 32 * GIB, "shared_free": 32 * GIB,
        "disk_free": 400 * GIB, "disk_kv": 0, "num_hosts": 1,
    } | changes  # fmt: skip
    return Room(
        memory=Memory(found["total"], found["available"]),
        shared_bytes=found["shared"], shared_free_bytes=found["shared_free"],
        disk_free_bytes=found["disk_free"], disk_kv_bytes=found["disk_kv"],
        num_hosts=found["num_hosts"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "arena_bytes", "disk_bytes"),
    [
        pytest.param({}, 16 * GIB, 200 * GIB, id="a quarter of memory, half of the free disk"),
        pytest.param({"available": 6 * GIB}, 3 * GIB, 200 * GIB, id="others use the memory"),
        pytest.param(
            {"total": 2 * GIB, "available": 2 * GIB}, GIB // 2, 200 * GIB, id="a small container"
        ),
        pytest.param(
            {"shared": 64 * MIB, "shared_free": 64 * MIB}, int(57.6 * MIB), 200 * GIB, id="docker"
        ),
        pytest.param(
            {"shared_free": 10 * GIB}, 9 * GIB, 200 * GIB, id="others use the shared memory"
        ),
        pytest.param({"total": 40 * MIB}, ARENA_BYTES_MIN, 200 * GIB, id="hardly any memory"),
        pytest.param({"disk_free": 0}, 16 * GIB, MIB, id="a full disk"),
        pytest.param({"disk_free": 90 * GIB}, 16 * GIB, 45 * GIB, id="a disk of others"),
        pytest.param({"disk_free": 90 << 40}, 16 * GIB, DISK_BYTES_MAX, id="a large disk"),
        pytest.param({"num_hosts": 4}, 4 * GIB, 50 * GIB, id="four hosts"),
        pytest.param(
            {"num_hosts": 4, "shared": 8 * GIB, "shared_free": 8 * GIB}, int(1.8 * GIB), 50 * GIB,
            id="four hosts share the shared memory",
        ),
    ],
)  # fmt: skip
def test_the_default_is_a_share_of_what_there_is(
    changes: dict[str, int], arena_bytes: int, disk_bytes: int
) -> None:
    sizes = tier_sizes(room(**changes))
    assert not sizes.is_arena_set
    assert sizes.arena_bytes == pytest.approx(arena_bytes, abs=1)
    assert sizes.disk_bytes == disk_bytes


def test_what_is_on_the_disk_already_makes_it_no_smaller() -> None:
    sizes = [
        tier_sizes(room(disk_free=(400 - used) * GIB, disk_kv=used * GIB)) for used in (0, 90, 200)
    ]
    assert {each.disk_bytes for each in sizes} == {200 * GIB}


def test_a_setting_wins_as_far_as_it_fits() -> None:
    sizes = tier_sizes(room(available=0, disk_free=0), arena_bytes=20 * GIB, disk_bytes=1 << 50)
    assert (sizes.arena_bytes, sizes.disk_bytes) == (20 * GIB, 1 << 50)
    assert sizes.is_arena_set
    assert tier_sizes(room(), arena_bytes=40 * GIB).arena_bytes == int(0.9 * 32 * GIB)
    assert tier_sizes(room(num_hosts=8), arena_bytes=40 * GIB).arena_bytes == int(3.6 * GIB)


def test_a_host_that_comes_back_beside_others_has_the_room_it_had() -> None:
    first = tier_sizes(room(num_hosts=2, shared=8 * GIB, shared_free=8 * GIB), 40 * GIB)
    again = tier_sizes(room(num_hosts=2, shared=8 * GIB, shared_free=4 * GIB + 500 * MIB), 40 * GIB)
    assert first.arena_bytes == again.arena_bytes


@pytest.mark.parametrize("num_hosts", [1, 57])
def test_without_room_for_an_arena_it_says_how_much_there_is(num_hosts: int) -> None:
    free = 17 * MIB * num_hosts
    with pytest.raises(NoCapacity, match=f"{free:,} of {free:,} bytes are free there"):
        tier_sizes(room(shared=free, shared_free=free, num_hosts=num_hosts))
    tier_sizes(room(shared=2 * free, shared_free=2 * free, num_hosts=num_hosts))


@given(
    total=SIZES, available=SIZES, shared=SIZES, disk_free=SIZES, disk_kv=SIZES,
    num_hosts=st.integers(1, 64),
)  # fmt: skip
def test_hosts_together_never_take_what_others_need(
    total: int, available: int, shared: int, disk_free: int, disk_kv: int, num_hosts: int
) -> None:
    measured = room(
        total=total, available=min(available, total), shared=shared, shared_free=shared,
        disk_free=disk_free, disk_kv=disk_kv, num_hosts=num_hosts,
    )  # fmt: skip
    try:
        sizes = tier_sizes(measured)
    except NoCapacity:
        assert 0.9 * shared / num_hosts < ARENA_BYTES_MIN + 1
        return
    arena_bytes = num_hosts * max(sizes.arena_bytes - ARENA_BYTES_MIN, 0)
    assert arena_bytes <= min(total // 4, measured.memory.available_bytes // 2)
    assert num_hosts * sizes.arena_bytes <= 0.9 * shared
    assert num_hosts * (sizes.disk_bytes - MIB) <= (disk_free + disk_kv) // 2
    assert sizes.disk_bytes > 0


def test_arenas_stop_growing_while_a_sixteenth_of_memory_is_available() -> None:
    assert may_grow(Memory(16 * GIB, GIB + MIB), MIB)
    assert not may_grow(Memory(16 * GIB, GIB + MIB - 1), MIB)
    assert may_grow(Memory(1 << 41, 5 * GIB), GIB), "4 GiB are enough for others"


def test_an_arena_is_ahead_by_as_much_as_is_used_within_bounds() -> None:
    ahead = [num_pages_ahead(num_used, MIB) for num_used in (0, 600, 9000)]
    assert ahead == [512, 600, 4096]
    assert num_pages_ahead(0, 1 << 40) == 1
