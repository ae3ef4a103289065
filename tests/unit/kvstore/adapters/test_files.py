"""Adapters on the disk: whole or not at all, wherever the process is killed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.kvstore.adapters.files import NEW, AdapterFiles, Found
from shared.ids import HostId, ModelId, TenantId
from shared.wire.messages import AdapterRecord

TENANT = TenantId("t/../x")
CHANGING = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


class Killed(BaseException):
    """The process ends here."""


def record(adapter_hash: str, revision: int = 1, name: str = "a") -> AdapterRecord:
    return AdapterRecord(
        name=name, tenant=TENANT, model_id=ModelId("m"), adapter_hash=adapter_hash,
        ranks={"q": 8}, lora_rank=8, num_bytes=3, image_bytes=1, root="r", host_id=HostId("h"),
        created=1, revision=revision,
    )  # fmt: skip


ONE, TWO = "1" * 32, "2" * 32
FIRST, SECOND = record(ONE), record(TWO, 2)


def bring(files: AdapterFiles, adapter_hash: str) -> None:
    folder = files.new_folder()
    (folder / "weights").write_text(adapter_hash[:3])
    files.install(folder, adapter_hash, lambda place: (place / "weights").read_text() != "bad")


def story(files: AdapterFiles) -> None:
    """A name is made, changed and removed; its files go."""
    bring(files, ONE)
    files.write_record(FIRST)
    bring(files, TWO)
    files.write_record(SECOND)
    files.delete_folder(ONE)
    bring(files, TWO)  # the same once more
    files.delete_record(TENANT, "a")
    files.delete_folder(TWO)


def killed_after(num: int, work: Callable[[], None]) -> bool:
    """Run `work` with nothing changing on the disk any more after so many changes."""
    left = num

    def limited(call: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise Killed
            left -= 1
            return call(*args, **kwargs)

        return changed

    real_write = Path.write_bytes

    def write(path: Path, data: bytes) -> int:
        half = len(data) // 2
        limited(real_write)(path, data[:half])
        return int(limited(real_write)(path, data))

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGING:
            patch.setattr(os, name, limited(getattr(os, name)))
        patch.setattr(Path, "write_bytes", write)
        try:
            work()
        except Killed:
            return True
    return False


def check(root: Path, found: Found) -> None:
    left = [path.name for path in root.rglob("*") if path.name.startswith(NEW)]
    assert not left, left
    for each in found.records:
        assert each in (FIRST, SECOND)
        assert (root / each.adapter_hash / "weights").read_text() == each.adapter_hash[:3]
    assert all(num_bytes == 3 for num_bytes in found.files.values())


def test_a_kill_anywhere_leaves_each_adapter_whole_or_not_at_all(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []
    for num in range(200):
        root = tmp_path / str(num)
        files = AdapterFiles(root)
        files.scan()
        was_killed = killed_after(num, lambda files=files: story(files))  # type: ignore[misc]
        found = AdapterFiles(root).scan()
        check(root, found)
        standing = tuple(each.revision for each in found.records)
        if seen[-1:] != [standing]:
            seen.append(standing)
        story(AdapterFiles(root))  # whatever was left keeps nothing from coming again
        if not was_killed:
            break
    else:
        raise AssertionError("the story never ended")
    assert seen == [(), (1,), (2,), ()]


def test_damaged_files_give_way_to_whole_ones(tmp_path: Path) -> None:
    files = AdapterFiles(tmp_path)
    files.scan()
    bring(files, ONE)
    place = files.folder_of(ONE)
    (place / "weights").write_text("bad")
    bring(files, ONE)
    assert (place / "weights").read_text() == "111"
    assert AdapterFiles(tmp_path).scan() == Found([], {ONE: 3})


def test_what_is_no_record_is_left_out(tmp_path: Path) -> None:
    files = AdapterFiles(tmp_path)
    files.scan()
    bring(files, ONE)
    files.write_record(FIRST)
    (tmp_path / "names" / "0.json").write_text('{"name": 7}')
    (tmp_path / "names" / "folder").mkdir()
    (tmp_path / "not-a-hash").mkdir()
    assert AdapterFiles(tmp_path).scan() == Found([FIRST], {ONE: 3})


def test_names_of_two_tenants_never_meet(tmp_path: Path) -> None:
    files = AdapterFiles(tmp_path)
    paths = {
        files._path_of(TenantId(tenant), name)
        for tenant, name in (("a", "bc"), ("ab", "c"), ("", "abc"), ("1:a", "bc"), ("abc", ""))
    }
    assert len(paths) == 5 and {path.parent for path in paths} == {tmp_path / "names"}
