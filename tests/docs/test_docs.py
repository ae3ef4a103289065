"""What the docs list by hand is complete: every subject, every setting; links lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.base.children import ROOT
from cli.base.config import LauncherConfig
from cli.docs import asyncapi, http_page, nats_page
from cli.docs.fields import table
from cli.docs.links import anchor
from cli.docs.meanings import COMMON
from services.frontend.api.bodies.base import Body
from services.frontend.api.bodies.oneshot import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    PoolingBody,
    RerankBody,
    ScoreBody,
)
from services.frontend.api.bodies.responses import ResponsesBody
from services.frontend.api.bodies.text import AdvisoryBody, ChatBody, CompletionBody
from services.frontend.config import FrontendConfig
from services.kvstore.config import KvstoreConfig
from services.scheduler.config import SchedulerConfig
from services.tracker.config import TrackerConfig
from services.worker.config import WorkerConfig
from shared.runtime.config import ServiceConfig, settings_of
from shared.runtime.settings import ENV_PREFIX
from shared.wire import subjects
from shared.wire.subjects import INFERENCE_SUBMIT, TENANT_INFERENCE_SUBMIT, NoReply, Subject
from tests.docs.blocks import pages

CONFIGS: list[type[ServiceConfig]] = [
    FrontendConfig, KvstoreConfig, LauncherConfig, SchedulerConfig, TrackerConfig, WorkerConfig,
]  # fmt: skip
LINK = re.compile(r"\]\(([^)\s]+)\)")
CELLS = re.compile(r"(?<!\\)\|")
NO_MEANING = re.compile(r"\*\*\w+\*\*|default `[^`]*`|[\s.,;]")
METRIC = re.compile(r"\b(counter|gauge|histogram)\(\s*\"([a-z_]+)\"")


def declared() -> Iterator[tuple[str, Subject[object, object]]]:
    """Every subject of the table, by name."""
    return ((name, value) for name, value in vars(subjects).items() if isinstance(value, Subject))


def test_every_subject_is_documented_with_its_types() -> None:
    text = (ROOT / "docs" / "nats.md").read_text()
    for name, subject in declared():
        answer = "" if subject.reply is NoReply else f"`{subject.reply.__name__}`"
        row = f"| `{name}` | `{subject.pattern}` | `{subject.request.__name__}` |"
        assert f"{row} {answer} |".replace("|  |", "| |") in text, f"docs/nats.md lacks: {row}"
    assert f"| `INFERENCE_SUBMIT` | `{INFERENCE_SUBMIT}` |" in text
    assert f"| `TENANT_INFERENCE_SUBMIT` | `{TENANT_INFERENCE_SUBMIT}` |" in text


def test_no_documented_subject_is_unknown() -> None:
    text = (ROOT / "docs" / "nats.md").read_text()
    known = {subject.pattern for _, subject in declared()}
    known |= {INFERENCE_SUBMIT, TENANT_INFERENCE_SUBMIT}
    rows = re.findall(r"^\| `[A-Z_]+` \| `([^`]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(known)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_setting_is_documented(kind: type[ServiceConfig]) -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    for name in settings_of(kind):
        assert f"`{ENV_PREFIX}{name.upper()}`" in text, f"docs/operations.md lacks {name}"


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_within_the_docs_lead_somewhere(path: Path) -> None:
    for target in LINK.findall(path.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        there = path.parent / name if name else path
        assert there.is_file(), f"{path.name}: no {target}"
        if anchor:
            assert anchor in headings(there.read_text()), f"{path.name}: no {target}"


def headings(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    return {anchor(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    "kind",
    [
        ChatBody, CompletionBody, ResponsesBody, AdvisoryBody, EmbeddingBody, PoolingBody,
        CohereEmbedBody,
        ClassifyBody, RerankBody, ScoreBody,
    ],
)  # fmt: skip
def test_every_parameter_is_documented(kind: type[Body]) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    internal = {"tenant"}  # of NATS alone
    for name in kind.model_fields.keys() - internal:
        assert re.search(rf"`{name}\b", text), f"docs/api.md lacks {name}"


def test_every_metric_is_documented() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    sources = [path.read_text() for folder in ("services", "shared") for path in files_of(folder)]
    names = [match for source in sources for match in METRIC.findall(source)]
    assert len(names) > 40, "the pattern no longer finds them"
    for kind, name in names:
        shown = name if kind != "counter" or name.endswith("_total") else f"{name}_total"
        assert re.search(rf"`{shown}[`{{]", text), f"docs/operations.md lacks {shown}"


def unexplained(text: str) -> Iterator[str]:
    """Rows of a page's tables that have a column `meaning`, and nothing in it."""
    column = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in CELLS.split(line)[1:-1]]
        if not cells:
            column = None
        elif column is None:
            column = cells.index("meaning") if "meaning" in cells else -1
        elif column >= 0 and not NO_MEANING.sub("", cells[column]):
            yield line


def test_every_field_has_a_meaning() -> None:
    schemas = asyncapi.document()["components"]["schemas"]
    references = [http_page.page(http_page.openapi()), nats_page.page(asyncapi.document())]
    for text in (*references, *(path.read_text() for path in pages())):
        assert not list(unexplained(text))
    assert not re.findall(r"\| works(?:;.*)? \|", table()), "docs/fields.md"
    fields = [
        (name, field["description"]) for each in schemas.values()
        for name, field in each.get("properties", {}).items()
    ]  # fmt: skip
    assert not COMMON.items() - set(fields), "of use for no message"


def test_a_field_without_a_meaning_is_found() -> None:
    head = "| field | type | meaning |\n|---|---|---|\n"
    rows = "| `a` | integer | **needed**. default `1` |\n| `b` | integer | **needed**. its size |\n"
    assert list(unexplained(head + rows)) == ["| `a` | integer | **needed**. default `1` |"]


def files_of(folder: str) -> Iterator[Path]:
    """Every source of a folder."""
    return (ROOT / folder).rglob("*.py")
