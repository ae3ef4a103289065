"""The site is built, without a link that leads nowhere, and asks nothing of anybody's server."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.base.children import ROOT
from cli.docs.build import QUIET
from cli.docs.links import place_in_site
from cli.docs.search import TERMS
from cli.main import app
from loadtest.deployment import environment
from tests.docs.blocks import pages

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="needs mkdocs-material (the extra docs)"
)
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
LINKS_LOADED = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch"}
ELSEWHERE = re.compile(r"(https?:)?//")
IN_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?\s*(?:https?:)?//[^\"')\s]+")


def build(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", *options],
        env=environment({**QUIET, "PYTHONPATH": ":".join(filter(None, sys.path))}),
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build("--site-dir", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


class Loads(HTMLParser):
    """What a browser asks for when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in LOADED:
            self.addresses.append(values.get(LOADED[tag], ""))
        elif tag == "link" and LINKS_LOADED & set(values.get("rel", "").split()):
            self.addresses.append(values["href"])
        # The theme draws these with a script from elsewhere: ours are drawn beforehand.
        assert "mermaid" not in values.get("class", "").split()


def loads(text: str) -> list[str]:
    parser = Loads()
    parser.feed(text)
    return parser.addresses


def foreign(site: Path) -> Iterator[str]:
    """Each address of another server that a page or a style of the site loads from."""
    for page in site.rglob("*.html"):
        yield from (each for each in loads(page.read_text()) if ELSEWHERE.match(each))
    for style in site.rglob("*.css"):
        yield from IN_CSS.findall(style.read_text())


def test_every_page_is_there(site: Path) -> None:
    for path in pages():
        place = place_in_site(str(path.relative_to(ROOT)))
        place = re.sub(r"README\.md$", "index.md", place)
        assert (site / place).with_suffix(".html").is_file(), path
    assert json.loads((site / "openapi.json").read_text())["paths"]
    assert json.loads((site / "asyncapi.json").read_text())["channels"]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert not list(foreign(site))


def test_what_is_loaded_is_there(site: Path) -> None:
    for page in site.rglob("*.html"):
        for address in loads(page.read_text()):
            path = address.partition("?")[0].partition("#")[0]
            if path and not path.startswith(("data:", "/")):
                assert (page.parent / path).exists(), f"{page.name}: {address}"


def test_references_tell_of_all_endpoints_and_subjects(site: Path) -> None:
    http = (site / "http-reference.html").read_text()
    for path in json.loads((site / "openapi.json").read_text())["paths"]:
        assert path in http
    nats = (site / "nats-reference.html").read_text()
    for channel in json.loads((site / "asyncapi.json").read_text())["channels"].values():
        address = channel["address"]
        assert address is None or address.startswith("$KV") or address in nats


SEARCHED = {
    "advisory": "api", "hint": "api", "session": "api", "adapter": "adapters", "agent": "agents",
    "kvstore": "architecture", "prefetch": "architecture", "placement": "architecture",
    "TTFT": "loadtest", "setting": "operations", "install": "quickstart",
    "LoRA adapter": "adapters",
}  # fmt: skip


def test_a_search_finds_the_page_of_a_term_first(site: Path) -> None:
    """By the script that the site itself searches with."""
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node")
    wanted = {term: f"{page}.html" for term, page in SEARCHED.items()}
    for page, terms in TERMS.items():
        wanted |= dict.fromkeys(terms, page.replace(".md", ".html"))
    command = [node, str(ROOT / "tests/docs/site_search.js"), str(site), *wanted]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    first = {term: pages[0].partition("#")[0] if pages else "" for term, pages in found.items()}
    assert first == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[x](nowhere.md)", "nowhere.md"),
        ("[x](index.md#nothing)", "#nothing"),
        ("[x](/nothing)", "/nothing"),
    ],
)
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n{text}\n")
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nsite_dir: site\n"
        "hooks: []\nplugins: []\ntheme: {name: mkdocs}\nnav: [index.md]\n"
    )
    done = build("--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode != 0
    assert why in done.stderr


@pytest.mark.parametrize("words", [["docs"], ["docs", "--serve", "--port", "0"]])
def test_the_command_fails_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.setattr("cli.docs.build.ROOT", tmp_path)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "symphony: " in result.stderr


def test_what_is_foreign_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script src="https://a/x.js"></script><link rel="stylesheet" href="//b/x.css">'
        '<img src="https://c/x.png"><a href="https://d">d</a>'
    )
    (tmp_path / "a.css").write_text('@import "https://e/x.css"; a { background: url(//f/x.png) }')
    assert len(list(foreign(tmp_path))) == 5
