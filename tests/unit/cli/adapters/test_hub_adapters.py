"""Adapters of the hub, against a small server that says what the hub says."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from typer.testing import CliRunner

from cli import up
from cli.adapters import client, hub
from cli.adapters.hub import fetch_adapter, parse_hub
from cli.adapters.offered import fetch_offers, parse_offer
from cli.base.children import free_port
from cli.main import app
from cli.start.options import DeploymentOptions
from shared.adapters.config import AdapterInvalid, AdapterTooLarge
from shared.errors import ConfigError, NotFound, PeerUnavailable, SymphonyError
from tests.adapters import write_adapter

FIRST, SECOND = "1" * 40, "2" * 40
CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"


@dataclass
class Hub:
    """One repository, `acme/fox`, and what was asked of it.

    Attributes:
        commits: files by commit; `refs` lead there.
        is_gated: its owner chooses who may read.
        is_ill: it has a bad day.
        gets: what was fetched, as ``COMMIT/FILE``.
    """

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str] = field(default_factory=lambda: {"main": FIRST})
    is_gated: bool = False
    is_ill: bool = False
    gets: list[str] = field(default_factory=list)
    endpoint: str = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        owner, name, _, revision, file = path.strip("/").split("/", 4)
        if self.is_ill:
            return 503, {}, b""
        if (owner, name) != ("acme", "fox"):
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        if self.is_gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        commit = self.refs.get(revision, revision)
        if commit not in self.commits:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if file not in self.commits[commit]:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        data = self.commits[commit][file]
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{commit}-{file}"'}, data

    def fetch(self, text: str, kept: Path, bytes_max: int = 1_000_000) -> tuple[Path, list[str]]:
        """The folder, and what was said."""
        said: list[str] = []
        folder = fetch_adapter(parse_hub(text), kept, said.append, bytes_max, self.endpoint)
        return folder, said


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    source = write_adapter(tmp_path / "source")
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    files |= {"tokenizer_config.json": b"{}", PICKLE: b"evil", "README.md": b"hello"}
    it = Hub({FIRST: files})

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            status, headers, data = it.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                it.gets.append(self.path.split("/resolve/")[1])
                self.wfile.write(data)

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        it.endpoint = f"http://127.0.0.1:{server.server_port}"
        yield it
        huggingface_hub.close_session()
        server.shutdown()


def test_what_is_needed_is_fetched_once_a_commit(acme: Hub, tmp_path: Path) -> None:
    folder, said = acme.fetch("hub:acme/fox", tmp_path)
    names = [CONFIG, WEIGHTS, "tokenizer_config.json"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert all((folder / name).read_bytes() == acme.commits[FIRST][name] for name in names)
    assert not any(path.is_symlink() for path in folder.iterdir()), "a kvstore follows none"
    assert acme.gets == [f"{FIRST}/{name}" for name in names]
    assert len(said) == 1 and said[0].startswith("fetching hub:acme/fox: ")
    assert acme.fetch(f"hub:acme/fox@{FIRST}", tmp_path) == (folder, [])
    assert len(acme.gets) == 3
    acme.commits[SECOND] = acme.commits[FIRST] | {CONFIG: b'{"new": 1}'}
    acme.refs |= {"v2": SECOND}
    other, _ = acme.fetch("hub:acme/fox@v2", tmp_path)
    assert other != folder and (other / CONFIG).read_bytes() == b'{"new": 1}'
    assert acme.fetch("hub:acme/fox", tmp_path)[0] == folder


@pytest.mark.parametrize(
    ("text", "missing", "error", "words"),
    [
        ("hub:acme/cat", (), NotFound, "hub:acme/cat: the hub has no such repository"),
        ("hub:acme/fox@v9", (), NotFound, "it has no revision 'v9'"),
        ("hub:acme/fox", (CONFIG,), AdapterInvalid, f"{CONFIG}: it is missing"),
        ("hub:acme/fox", (WEIGHTS,), AdapterInvalid, f"{PICKLE}: a pickle may do anything"),
        ("hub:acme/fox", (WEIGHTS, PICKLE), AdapterInvalid, f"{WEIGHTS}: it is missing"),
        ("hub:acme/fo--x", (), ConfigError, "the hub knows no such names"),
    ],
)
def test_each_reason_is_told_before_anything_is_fetched(
    text: str,
    missing: tuple[str, ...],
    error: type[SymphonyError],
    words: str,
    acme: Hub,
    tmp_path: Path,
) -> None:
    for name in missing:
        del acme.commits[FIRST][name]
    with pytest.raises(error, match=words):
        acme.fetch(text, tmp_path)
    assert not acme.gets and not list(tmp_path.rglob(f"{hub.FOLDER}/*/*"))


def test_a_closed_or_too_large_one_is_not_fetched(acme: Hub, tmp_path: Path) -> None:
    with pytest.raises(AdapterTooLarge, match="at most 1000 are taken"):
        acme.fetch("hub:acme/fox", tmp_path, 1000)
    acme.is_gated = True
    with pytest.raises(SymphonyError, match="HF_TOKEN"):
        acme.fetch("hub:acme/fox", tmp_path)
    assert not acme.gets


def test_without_a_hub_what_came_before_is_taken(
    acme: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as offline:
        offline.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(PeerUnavailable, match=r"the hub cannot be reached: .*offline mode"):
            acme.fetch("hub:acme/fox", tmp_path)
    folder, _ = acme.fetch("hub:acme/fox", tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    again, said = acme.fetch("hub:acme/fox", tmp_path)
    assert again == folder and said[0].endswith("; taking what was fetched before")
    with pytest.raises(PeerUnavailable):
        acme.fetch("hub:acme/fox@v2", tmp_path)


def test_a_hub_that_is_ill_or_gone_is_told_at_once(acme: Hub, tmp_path: Path) -> None:
    acme.is_ill = True
    with pytest.raises(PeerUnavailable, match="the hub answers with status 503"):
        acme.fetch("hub:acme/fox", tmp_path)
    acme.endpoint = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(PeerUnavailable, match="the hub cannot be reached: Connection refused"):
        acme.fetch("hub:acme/fox", tmp_path)


def test_a_server_that_is_no_hub_names_no_folder(acme: Hub, tmp_path: Path) -> None:
    acme.refs["main"] = "../../../evil"
    acme.commits["../../../evil"] = acme.commits[FIRST]
    with pytest.raises(PeerUnavailable, match="what answers is no hub"):
        acme.fetch("hub:acme/fox", tmp_path)
    assert not acme.gets


@pytest.mark.parametrize(
    "text", ["hub:", "hub:fox", "hub:a/b/c", "hub:a/b@", "hub:a b/c", "hub:a/b@v@w"]
)
def test_malformed_names_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give hub:OWNER/REPO"):
        parse_offer(f"fox={text}", tmp_path)


def test_the_command_fetches_and_services_are_given_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_adapter(tmp_path / "fetched")
    asked: list[tuple[str, Path]] = []

    def fetch(wanted: hub.HubAdapter, kept: Path, *_: Any) -> Path:
        asked.append((wanted.text, kept))
        return folder

    monkeypatch.setattr(hub, "fetch_adapter", fetch)
    offer = parse_offer("fox=hub:acme/fox@v2", tmp_path)
    (there,) = fetch_offers([offer], tmp_path / "models", print)
    assert (there.name, there.folder, there.hub) == ("fox", folder, "")

    started: list[DeploymentOptions] = []
    monkeypatch.setattr(up, "run_deployment", lambda options, *_, **__: started.append(options))
    data_dir = tmp_path / "data"
    words = ["--port", "0", "--data-dir", str(data_dir), "--adapter", "fox=hub:acme/fox"]
    for kind in (["--emulate", "zero"], ["--model", "demo"]):
        assert CliRunner().invoke(app, ["up", *words, *kind]).exit_code == 0
    assert [[each.folder for each in options.adapters] for options in started] == [[folder]] * 2

    sent: list[Path] = []
    monkeypatch.setattr(client, "running_deployment", lambda _: pytest.fail("not asked for"))

    def add(_: client.AdapterClient, name: str, path: Path, **__: Any) -> dict[str, Any]:
        sent.append(path)
        return {"warnings": [], "parent": name}

    monkeypatch.setattr(client.AdapterClient, "add", add)
    words = ["adapters", "add", "fox", "hub:acme/fox", "--url", "http://127.0.0.1:1"]
    done = CliRunner().invoke(app, [*words, "--data-dir", str(data_dir)])
    assert done.exit_code == 0 and sent == [folder]
    kept = [tmp_path / "models", *[data_dir / "models"] * 3]
    assert asked == list(zip(["hub:acme/fox@v2", *["hub:acme/fox"] * 3], kept, strict=True))
