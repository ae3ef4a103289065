"""The disk starts whatever it holds."""

import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from services.kvstore.tiers.disk import (
    ASIDE_NAME,
    DATA_NAME,
    FOUND,
    Disk,
    DiskDamaged,
    FoundBlock,
    Scan,
    start,
)
from services.kvstore.tiers.disk.check import EXIT_DAMAGED, EXIT_REFUSED, pack_scan, unpack_scan
from services.kvstore.tiers.disk.records import FORMAT
from services.kvstore.tiers.disk.start import DatabaseDamaged, check, start_disk
from shared.blocks import BlockKey
from tests.unit.kvstore.tiers.disk.damaged_starts import (
    BYTES_MAX,
    LEFT,
    key_of,
    make_base,
    put,
    read,
)

NUM_SEEDS = 40
Ended = subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("base")
    make_base(folder)
    return folder


def test_every_damaged_database_starts_and_gives_no_wrong_bytes(base: Path, tmp_path: Path) -> None:
    module = "tests.unit.kvstore.tiers.disk.damaged_starts"
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(base), str(tmp_path / str(half))]
            + [str(seed) for seed in range(half, NUM_SEEDS, 2)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for half in (0, 1)
    ]
    output = "".join(run.communicate()[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0], output
    assert output.count("reset") >= NUM_SEEDS // 4, "the damage is felt"
    assert output.count("found") >= NUM_SEEDS // 8, "and does not always cost everything"


def test_a_whole_database_is_kept_and_scanned_once(tmp_path: Path) -> None:
    disk = Disk(tmp_path, BYTES_MAX)
    put(disk, LEFT[:5])
    disk.close()
    started = start_disk(tmp_path, BYTES_MAX)
    assert not started.was_reset and not (tmp_path / ASIDE_NAME).exists()
    assert {block.key for block in started.scan.blocks} == {key_of(n) for n in LEFT[:5]}
    assert started.scan.blocks == started.disk.scan().blocks
    started.disk.close()


def test_another_releases_database_is_thrown_away_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(tmp_path, BYTES_MAX)
    put(disk, LEFT[:5])
    disk.close()
    env = lmdb.open(str(tmp_path), max_dbs=2)
    with env.begin(write=True) as transaction:
        assert transaction.get(b"format") == FORMAT
        transaction.put(b"format", FORMAT + b"+")
    env.close()
    started = start_disk(tmp_path, BYTES_MAX)
    assert started.was_reset and not len(started.scan.found)
    assert not (tmp_path / ASIDE_NAME).exists(), "it is not damaged: there is nothing to examine"
    (record,) = caplog.records
    assert record.message == "the KV database is another release's and is reset"
    put(started.disk, LEFT[:1])
    started.disk.close()
    again = start_disk(tmp_path, BYTES_MAX)
    assert not again.was_reset and [block.key for block in again.scan.blocks] == [key_of(LEFT[0])]
    again.disk.close()


def test_a_scan_travels_whole_or_not_at_all() -> None:
    found = np.zeros(2, FOUND)
    found["key"] = [b"a" * 15 + b"\0", b"b" * 16]
    found["num_layers"], found["page_bytes"], found["used_s"] = 65535, 2**30, 2**64 - 1
    found["parent"][1] = found["key"][0]
    packed = pack_scan(Scan(found, 3))
    scan = unpack_scan(packed)
    most = (65535, 2**30, 2**64 - 1)
    first, second = BlockKey(b"a" * 15 + b"\0"), BlockKey(b"b" * 16)
    assert scan.blocks == [FoundBlock(first, *most), FoundBlock(second, *most, parent=first)]
    assert scan.num_deleted == 3
    for cut in (packed[:-1], packed + b"0", packed[:7], b""):
        with pytest.raises(ValueError, match="bytes"):
            unpack_scan(cut)


def test_what_was_set_aside_earlier_is_replaced(tmp_path: Path) -> None:
    for content in (b"1", b"2"):
        (tmp_path / DATA_NAME).write_bytes(content * 16384)
        start_disk(tmp_path, BYTES_MAX).disk.close()
    assert (tmp_path / ASIDE_NAME).read_bytes() == b"2" * 16384
    assert sorted(path.name for path in tmp_path.iterdir()) == [DATA_NAME, ASIDE_NAME, "lock.mdb"]


def test_a_check_that_takes_too_long_counts_as_damage(tmp_path: Path) -> None:
    Disk(tmp_path, BYTES_MAX).close()
    with pytest.raises(DatabaseDamaged, match="longer than 0 s"):
        check(tmp_path, BYTES_MAX, limit_s=0)


def checks_end(monkeypatch: pytest.MonkeyPatch, *codes: int) -> None:
    """The next checks end with these codes."""
    left = list(codes)
    said = pack_scan(Scan(num_deleted=9))
    monkeypatch.setattr(start, "_run_check", lambda *_: Ended([], left.pop(0), said, b"why"))


def test_what_the_end_of_a_check_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in (EXIT_DAMAGED, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
        checks_end(monkeypatch, code)
        with pytest.raises(DatabaseDamaged, match="why"):
            check(tmp_path, BYTES_MAX, 1.0)
    checks_end(monkeypatch, EXIT_REFUSED)
    with pytest.raises(OSError, match="why"):
        check(tmp_path, BYTES_MAX, 1.0)


def test_a_check_that_somebody_stops_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks_end(monkeypatch, -signal.SIGTERM, 0)
    assert check(tmp_path, BYTES_MAX, 1.0).num_deleted == 9
    checks_end(monkeypatch, -signal.SIGKILL, -signal.SIGKILL)
    with pytest.raises(DatabaseDamaged, match="SIGKILL"):
        check(tmp_path, BYTES_MAX, 1.0)


def test_damage_found_later_closes_the_database_until_it_is_begun_anew(tmp_path: Path) -> None:
    disk = Disk(tmp_path, BYTES_MAX)
    put(disk, LEFT[:2])
    with pytest.raises(DiskDamaged, match="made up") as caught, disk.read():
        raise lmdb.PageNotFoundError("made up")
    assert caught.value.life == 1
    with pytest.raises(DiskDamaged, match="before"):
        put(disk, LEFT[2:4])
    disk.reset()
    assert disk.life == 2 and (tmp_path / ASIDE_NAME).exists()
    put(disk, LEFT[2:4])
    assert read(disk, LEFT[:4]) == 4
    disk.close()
