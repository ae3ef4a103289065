"""Lease files, locks and arenas."""

import asyncio
import errno
import fcntl
import os
import queue
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.kvstore import leases as leases_module
from services.kvstore import room as room_module
from services.kvstore.config import KvstoreConfig
from services.kvstore.core.base.tier_sizes import TierSizes
from services.kvstore.leases import LeaseFiles, lock_directory
from services.kvstore.room import decide_sizes
from services.kvstore.tiers.memory import arenas as arenas_module
from services.kvstore.tiers.memory import filling as filling_module
from services.kvstore.tiers.memory.arenas import Arenas, remove_arenas
from services.kvstore.tiers.memory.filling import Filling
from shared.arena import Arena
from shared.errors import ConfigError, NoCapacity
from shared.ids import HostId, WorkerId
from shared.runtime.memory import Memory

WORKER = WorkerId("w")
MIB = 1024**2
SET = TierSizes(MIB, MIB, is_arena_set=True)


def test_a_worker_is_dead_when_its_lock_is_gone(tmp_path: Path) -> None:
    leases = LeaseFiles(tmp_path)
    path = leases.add(WORKER, "i")
    assert leases.poll() == []
    lock = os.open(path, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert leases.poll() == []
    os.close(lock)
    assert leases.poll() == [(WORKER, "i")]
    leases.drop(WORKER, "i")
    assert leases.poll() == [] and not path.exists()


def test_a_worker_that_never_locks_is_dead_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "NEVER_LOCKED_POLLS_MAX", 3)
    leases = LeaseFiles(tmp_path)
    leases.add(WORKER, "i")
    assert [leases.poll() for _ in range(3)] == [[], [], [(WORKER, "i")]]
    leases.close()


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path / "a", "SYMPHONY_X")
    with pytest.raises(ConfigError, match=r"SYMPHONY_X=.*another kvstore"):
        lock_directory(tmp_path / "a", "SYMPHONY_X")
    os.close(lock)
    os.close(lock_directory(tmp_path / "a", "SYMPHONY_X"))


def test_an_arena_is_capped_and_refused_when_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arenas = Arenas(tmp_path, SET)
    stale = tmp_path / "kv-1.arena"
    stale.touch()
    remove_arenas(tmp_path)
    assert not stale.exists()
    arena = asyncio.run(arenas.get(page_bytes=4096, num_layers=4))
    assert arena.num_pages == 256
    monkeypatch.setattr(Arenas, "_free_bytes", lambda self: 100_000)
    assert asyncio.run(arenas.get(page_bytes=8192, num_layers=4)).num_pages == 10
    with pytest.raises(NoCapacity, match="room for 5 arena pages"):
        asyncio.run(arenas.get(page_bytes=16384, num_layers=4))
    arenas.close()
    assert not tmp_path.exists()


def test_an_arena_is_served_while_it_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas_module, "FIRST_BYTES", 5 * 4096)
    monkeypatch.setattr(filling_module, "CHUNK_BYTES", 3 * 4096)
    may_go, populated = threading.Event(), []
    populate = Arena.populate

    def held(self: Arena, first: int, num_pages: int) -> None:
        populated.append((first, num_pages))
        assert first == 0 or may_go.wait(30)
        populate(self, first, num_pages)

    monkeypatch.setattr(Arena, "populate", held)
    grown: list[tuple[int, int]] = []
    arenas = Arenas(tmp_path, SET)
    arenas.on_grown = lambda page_bytes, pages: grown.append((page_bytes, pages))
    arena = asyncio.run(arenas.get(page_bytes=4096, num_layers=2))
    assert (arena.num_pages, arenas.num_ready(4096), grown) == (256, 5, [])
    arena.pages[4] = 1
    monkeypatch.setattr(Arenas, "_free_bytes", lambda self: MIB)
    with pytest.raises(NoCapacity, match="room for 0 arena pages"):
        asyncio.run(arenas.get(page_bytes=32768, num_layers=1))  # it is promised to the other
    may_go.set()
    arenas._fillings[4096].join()
    assert arenas.num_ready(4096) == 256
    assert grown[-1] == (4096, 256) and grown == sorted(set(grown))
    pages = sorted(populated)
    assert pages[0] == (0, 5) and pages[-1] == (254, 2)
    assert [first for first, _ in pages[1:]] == list(range(5, 256, 3))
    arena.pages[:] = 7
    assert arena.pages[0, 0] == 7
    arenas.close()


def test_an_arena_without_memory_for_all_of_it_stays_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    populate = Arena.populate

    def limited(self: Arena, first: int, num_pages: int) -> None:
        if first + num_pages > 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        populate(self, first, num_pages)

    monkeypatch.setattr(arenas_module, "FIRST_BYTES", 4096)
    monkeypatch.setattr(filling_module, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(Arena, "populate", limited)
    arenas = Arenas(tmp_path, SET)
    asyncio.run(arenas.get(page_bytes=4096, num_layers=1))
    arenas._fillings[4096].join()
    assert arenas.num_ready(4096) == 100
    assert arenas.by_page_bytes[4096].filled.tolist() == [100], "workers see that, too"
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "no memory for all of the arena: it stays smaller"
    ]
    monkeypatch.setattr(
        Arena, "populate", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "none left"))
    )
    with pytest.raises(NoCapacity, match="none left"):
        asyncio.run(arenas.get(page_bytes=8192, num_layers=1))
    assert not (tmp_path / "kv-8192.arena").exists()
    arenas.close()


def test_a_filling_that_is_stopped_leaves_the_arena_alone(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "arena", 4096, 4096, 1)
    filling = Filling(arena, 1, 4096, lambda _: None, num_threads=2)
    filling.stop()
    assert 1 <= filling.num_ready <= 4096 and filling.num_bytes_left == 0
    arena.close()


@pytest.mark.parametrize(
    ("nodes", "bound"), [([{0}, {1}], [{0}, {0}, {1}]), ([{0, 1}], []), ([], [])]
)
def test_memory_of_an_arena_comes_from_all_nodes(
    nodes: list[set[int]], bound: list[set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []
    monkeypatch.setattr(filling_module, "cpus_of_nodes", lambda: nodes)
    monkeypatch.setattr(filling_module, "bind_thread", asked.append)
    arena = Arena.create(tmp_path / "arena", 64, 4096, 1)
    filling = Filling(arena, 1, 64, lambda _: None, num_threads=3)
    filling.join()
    assert sorted(asked, key=min) == bound and filling.num_ready == 64
    arena.close()


def occupied(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_default_arena_takes_memory_as_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas_module, "FIRST_BYTES", 4 * 4096)
    monkeypatch.setattr(arenas_module, "num_pages_ahead", lambda used, page_bytes: 8)
    monkeypatch.setattr(filling_module, "CHUNK_BYTES", 3 * 4096)
    arenas = Arenas(tmp_path, TierSizes(MIB, MIB, is_arena_set=False))
    grown: queue.Queue[int] = queue.Queue()
    arenas.on_grown = lambda page_bytes, num_pages: grown.put(num_pages)
    arena = asyncio.run(arenas.get(page_bytes=4096, num_layers=2))
    assert (arena.num_pages, arenas.capacity_bytes(4096)) == (256, MIB)
    for wanted, num_ready in ((8, 8), (20, 20), (12, 20)):
        arenas.grow(4096, wanted)
        while arenas.num_ready(4096) < wanted:
            grown.get(timeout=30)
        assert arenas.num_ready(4096) == num_ready
    header = arena.pages.ctypes.data - arena.words.ctypes.data + 2 * 4096
    assert occupied(arena.path) <= header + 20 * 4096 < MIB // 2, "the rest is a hole"
    arenas.grow(4096, 1 << 40)
    while arenas.num_ready(4096) < 256:
        grown.get(timeout=30)
    arenas.close()


def test_default_arenas_share_the_size_and_what_has_grown_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas_module, "FIRST_BYTES", 4096)
    monkeypatch.setattr(arenas_module, "num_pages_ahead", lambda used, page_bytes: 1)
    arenas = Arenas(tmp_path, TierSizes(MIB, MIB, is_arena_set=False))
    grown: queue.Queue[tuple[int, int]] = queue.Queue()
    arenas.on_grown = lambda page_bytes, num_pages: grown.put((page_bytes, num_pages))

    def capacities() -> list[int]:
        return [arenas.capacity_bytes(each) for each in arenas.by_page_bytes]

    asyncio.run(arenas.get(page_bytes=4096, num_layers=1))
    asyncio.run(arenas.get(page_bytes=8192, num_layers=1))
    assert capacities() == [MIB // 2, MIB // 2]
    arenas.grow(4096, 256)
    while grown.get(timeout=30) != (4096, 128):
        pass
    asyncio.run(arenas.get(page_bytes=16384, num_layers=1))
    third = MIB // 3
    assert capacities() == [MIB // 2, third // 8192 * 8192, third // 16384 * 16384]
    arenas.close()


def test_a_default_arena_waits_while_others_need_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(filling_module, "PATIENCE_S", 0.0)
    answers, refused = [False], threading.Event()

    def may_take(num_bytes: int) -> bool:
        if not answers[0]:
            refused.set()
        return answers[0]

    ready = threading.Event()
    arena = Arena.create(tmp_path / "arena", 64, 4096, 1)
    filling = Filling(arena, 1, 64, lambda _: ready.set(), may_take, num_threads=1)
    assert refused.wait(30) and filling.num_ready == 1
    answers[0] = True
    assert ready.wait(30)
    filling.join()
    assert filling.num_ready == 64
    messages = [record.message for record in caplog.records]
    assert messages == ["the machine has no memory to spare: the arena waits with growing"]
    arena.close()


def test_a_size_that_is_set_is_taken_whatever_else_needs_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arenas_module, "measure_memory", lambda: Memory(0, 0))
    monkeypatch.setattr(arenas_module, "FIRST_BYTES", 4096)
    monkeypatch.setattr(arenas_module, "num_pages_ahead", lambda used, page_bytes: 8)
    arenas = Arenas(tmp_path, SET)
    grown: queue.Queue[int] = queue.Queue()
    arenas.on_grown = lambda page_bytes, num_pages: grown.put(num_pages)
    asyncio.run(arenas.get(page_bytes=4096, num_layers=1))
    while arenas.num_ready(4096) < 256:
        grown.get(timeout=30)
    arenas.close()


def test_sizes_are_decided_from_the_folders_that_are_there_or_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "measure_memory", lambda: Memory(1 << 40, 1 << 40))
    usage = shutil.disk_usage(tmp_path)
    there = SimpleNamespace(disk_usage=lambda path: path.exists() and usage)
    monkeypatch.setattr(room_module, "shutil", there)
    config = KvstoreConfig(
        host_id=HostId("h"), data_dir=tmp_path / "a/b", arena_dir=tmp_path / "arena/x"
    )
    before = decide_sizes(config)
    assert before.disk_bytes == usage.free // 2
    config.disk_path.mkdir(parents=True)
    (config.disk_path / "1x4096.slab").write_bytes(bytes(MIB))
    assert decide_sizes(config).disk_bytes == before.disk_bytes + MIB // 2, "it is ours already"
    shared = decide_sizes(config.model_copy(update={"num_hosts_here": 2}))
    assert shared.disk_bytes == (before.disk_bytes + MIB // 2) // 2
    usage = usage._replace(free=0)
    with pytest.raises(
        ConfigError, match=r"SYMPHONY_ARENA_DIR='.*arena/x': 0 of .* bytes are free"
    ):
        decide_sizes(config)


def test_a_lease_file_replaces_a_link_and_does_not_follow_it(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "w.i.lease").symlink_to(victim)
    leases = LeaseFiles(tmp_path)
    assert not leases.add(WORKER, "i").is_symlink() and not victim.exists()
    leases.close()


def test_arenas_are_only_in_a_folder_that_is_ours_alone(tmp_path: Path) -> None:
    folder = tmp_path / "arena"
    folder.mkdir(mode=0o700)
    (folder / "kv-1.arena").touch()
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match=r"SYMPHONY_ARENA_DIR=.*mode 0755"):
        remove_arenas(folder)
    assert (folder / "kv-1.arena").exists()


def test_defaults_follow_the_host_and_the_data_folder(tmp_path: Path) -> None:
    config = KvstoreConfig(host_id=HostId("h7"), data_dir=tmp_path)
    assert config.arena_path == Path("/dev/shm/symphony-h7")
    assert config.disk_path == tmp_path / "kv"
