"""`symphony bench scale`: its disk is one that a kvstore starts on, and it hears the loop wait."""

import asyncio
import time
from pathlib import Path

import pytest

from loadtest.bench.scale import run, stalls
from loadtest.bench.scale.cores import kvstore_pages_per_s, worker_figures
from loadtest.bench.scale.filling import PAGE_BYTES
from loadtest.bench.scale.sessions import Sessions
from loadtest.bench.scale.watched import Beat, read_beats, watch
from services.kvstore.tiers.disk import Disk
from shared.arena import checksum
from shared.errors import InvalidRequest
from shared.wire.sessions import decode_record

SESSIONS = Sessions(num=3, num_blocks=2, num_layers=2)


def test_the_disk_is_one_as_a_kvstore_leaves_it(tmp_path: Path) -> None:
    SESSIONS.fill(tmp_path)
    SESSIONS.stamp(tmp_path, [1], 7)
    disk = Disk(tmp_path, SESSIONS.disk_bytes_max)
    blocks = {block.key: block for block in disk.scan().blocks}
    told = {block.key: block for block in SESSIONS.stored(0)}
    assert blocks.keys() == told.keys() and len(told) == SESSIONS.num_blocks_total
    for key, block in blocks.items():
        assert (block.owner, block.parent) == (told[key].owner, told[key].parent)
        assert (block.used_s == 7) == (block.owner == SESSIONS.owner(1))
    with disk.read() as reader:
        stored = reader.page(SESSIONS.keys(2)[1], layer=1)
        assert stored is not None and len(stored.page) == PAGE_BYTES
        assert stored.record.checksums[1] == checksum(bytes(stored.page))
        stored.page.release()
    disk.close()
    (_, data), *_ = SESSIONS.records()
    assert decode_record(data).block_keys == "".join(key.hex() for key in SESSIONS.keys(0))


def test_a_loop_that_stands_still_is_heard(tmp_path: Path) -> None:
    path = tmp_path / "beats"

    async def stand_still() -> float:
        task = asyncio.create_task(watch(path))
        await asyncio.sleep(0)
        began_s = time.monotonic()
        while time.monotonic() < began_s + 0.02:
            pass
        while not path.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        return began_s

    began_s = asyncio.run(stand_still())
    first = next(read_beats(path))
    assert first.at_s > began_s + 0.02 and first.late_s > 0.015 and first.busy_s > 0


def test_the_longest_time_counts_in_which_somebody_was_served() -> None:
    beats = {"start": [Beat(1, 0.5, 0.25)], "stage": [Beat(2, 0.003, 0.002), Beat(3, 0.002, 0)]}
    found = stalls(beats | {"tell": []})
    assert found["loop_stall_ms_max"] == 3.0
    assert found["loop_stall_ms"] == {"start": 500.0, "stage": 3.0, "tell": 0.0}
    assert found["loop_busy_ms"] == {"start": 250.0, "stage": 2.0, "tell": 0.0}


def test_the_cores_bring_up_every_page() -> None:
    per_s, us = kvstore_pages_per_s(SESSIONS, 4)
    assert per_s > 0 and us.keys() == {"stage", "loaded", "release"}
    per_s, us, planning = worker_figures(4, num_blocks=2, num_layers=2, num=3)
    assert per_s > 0 and us.keys() == {"arrive", "stage", "loaded", "leave"}
    assert planning["plan_ms"] > 0


@pytest.mark.parametrize("argv", [["--sessions", "0"], ["--expiring", "0"], ["--blocks", "-1"]])
def test_options_that_mean_nothing_are_refused(argv: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        run(argv)
