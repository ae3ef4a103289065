"""A model's digest is over all of its files, and is made while they are loaded."""

from hashlib import blake2b
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import xxhash

from services.worker.device.model import load_model
from services.worker.models import digest
from services.worker.models.demo_model import make_demo_model
from services.worker.models.digest import (
    READ_BYTES,
    OnBytes,
    WeightsDigest,
    weights_bytes,
    weights_digest,
)
from services.worker.models.weights import load_weights

SIZES = (0, 1, READ_BYTES - 1, READ_BYTES, 2 * READ_BYTES + 5)


def expected(folder: Path, pattern: str) -> str:
    whole = blake2b(digest_size=16)
    for path in sorted(folder.glob(pattern)):
        whole.update(f"{path.name}:{xxhash.xxh3_128(path.read_bytes()).hexdigest()}".encode())
    whole.update((folder / "config.json").read_bytes())
    return whole.hexdigest()


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_it_is_of_every_file_in_order(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    for number, size in enumerate(SIZES):
        (tmp_path / f"w{number}{suffix}").write_bytes(bytes([number]) * size)
    read: list[int] = []
    found = weights_digest(str(tmp_path), read.append).hexdigest()
    assert found == expected(tmp_path, f"*{suffix}")
    assert sum(read) == weights_bytes(str(tmp_path)) == sum(SIZES)
    (tmp_path / f"w{len(SIZES) - 1}{suffix}").write_bytes(b"other")
    assert weights_digest(str(tmp_path)).hexdigest() == expected(tmp_path, f"*{suffix}") != found


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(OSError, match=r"model\.safetensors"):
        weights_digest(str(tmp_path))


def test_what_is_fetched_meanwhile_is_hashed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(source: str, *, local_files_only: bool) -> str:
        assert (source, local_files_only) == ("somebody/model", True)
        return str(make_demo_model(tmp_path / "fetched"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", find)
    found = WeightsDigest("somebody/model").result().hexdigest()
    assert found == expected(tmp_path / "fetched", "*.safetensors")


def test_it_is_made_while_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_hashed, hash_file = Event(), digest._file_hash

    def note(path: Path, on_bytes: OnBytes) -> str:
        is_hashed.set()
        return hash_file(path, on_bytes)

    def load_after(*args: Any, **options: Any) -> Any:
        assert is_hashed.wait(10), "the digest is not begun before the weights are loaded"
        return load_weights(*args, **options)

    monkeypatch.setattr(digest, "_file_hash", note)
    monkeypatch.setattr("services.worker.device.model.verify_source", lambda *_: None)
    monkeypatch.setattr("services.worker.device.model.load_weights", load_after)
    load_model(str(make_demo_model(tmp_path / "demo")), "cpu", "auto", "plain")
