"""Folders that an adapter may come from, and those that it may not."""

import os
from pathlib import Path

import pytest

from services.kvstore.adapters.sources import PathForbidden, Source
from shared.adapters.config import AdapterInvalid
from shared.errors import NotFound
from tests.adapters import write_adapter


def read(allowed: Path, path: Path | str) -> dict[str, bytes]:
    source = Source([allowed], str(path))
    return {name: b"".join(source.parts(name)) for name in source.sizes()}


def test_a_folder_below_is_read(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "good" / "deep" / "a")
    (folder / "optimizer.pt").write_text("not taken")
    files = read(tmp_path / "good", folder)
    assert sorted(files) == ["adapter_config.json", "adapter_model.safetensors"]
    assert files["adapter_config.json"] == (folder / "adapter_config.json").read_bytes()


def test_links_within_the_allowed_folders_are_followed(tmp_path: Path) -> None:
    root = tmp_path / "hub"
    blobs = write_adapter(root / "blobs")
    snapshot = root / "snapshot"
    snapshot.mkdir()
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../blobs/{file.name}")
    (tmp_path / "door").symlink_to(root)
    assert read(tmp_path / "door", snapshot) == read(root, blobs)


@pytest.mark.parametrize(
    "path",
    ["{out}", "{good}/../out", "{good}/door", "{good}/none/../../out", "good", "", "{good}\0"],
)
def test_other_folders_are_forbidden_whatever_leads_there(path: str, tmp_path: Path) -> None:
    good, out = tmp_path / "good", write_adapter(tmp_path / "out")
    good.mkdir()
    (good / "door").symlink_to(out)
    with pytest.raises(PathForbidden):
        Source([good], path.format(good=good, out=out))
    with pytest.raises(PathForbidden):
        Source([], str(good))


def test_outside_nobody_is_told_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    for path in (tmp_path / "out", tmp_path / "none"):
        with pytest.raises(PathForbidden):
            Source([tmp_path / "good"], str(path))
    with pytest.raises(NotFound):
        Source([tmp_path], str(tmp_path / "none"))


def test_a_file_that_is_a_link_out_is_forbidden(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    folder = write_adapter(tmp_path / "good" / "a")
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").symlink_to(secret)
    with pytest.raises(PathForbidden):
        read(tmp_path / "good", folder)


def test_a_link_that_is_put_there_meanwhile_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    folder = write_adapter(tmp_path / "good" / "a")
    source = Source([tmp_path / "good"], str(folder))
    source._below = lambda path: (tmp_path / "good", ("a", path.name))  # type: ignore[method-assign]
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").symlink_to(secret)
    with pytest.raises(AdapterInvalid, match="cannot be read"):
        list(source.parts("adapter_config.json"))


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "tokenizer.json").mkdir()
    with pytest.raises(AdapterInvalid, match=r"tokenizer\.json"):
        read(tmp_path, folder)
    (folder / "tokenizer.json").rmdir()
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(AdapterInvalid, match=r"tokenizer\.json: it is no file"):
        read(tmp_path, folder)


def test_a_pickle_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(AdapterInvalid, match=r"adapter_model\.bin") as caught:
        read(tmp_path, folder)
    assert caught.value.param == "adapter_model.bin"
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(AdapterInvalid, match=r"adapter_model\.safetensors: it is missing"):
        read(tmp_path, folder)
