"""What mkdocs calls while it builds the site: pages from outside of docs/, pages that are made from
the code, and links that are right in both places.
"""

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from cli.base.children import ROOT
from cli.docs import asyncapi, http_page, nats_page
from cli.docs.links import anchor, for_site, place_in_site, targets
from cli.docs.search import found_by

OUTSIDE = (
    "README.md",
    "cli/adapters/trained/README.md",
    "clients/python/README.md",
    "clients/symphony.js/README.md",
)
LANGUAGES = {".py": "python", ".json": "json", ".js": "js", ".yaml": "yaml"}


def on_config(config: MkDocsConfig) -> None:
    """Anchors are GitHub's, so that a link to one is right there and here."""
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": anchor}


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add what is not in docs/."""
    for path in OUTSIDE:
        text = for_site(path, (ROOT / path).read_text())
        files.append(File.generated(config, place_in_site(path), content=text))
    for path in sorted(_shown()):
        page = File.generated(
            config,
            place_in_site(path),
            content=_as_page(path),
            inclusion=InclusionLevel.NOT_IN_NAV,  # found by links alone
        )
        files.append(page)
    icon = ROOT / "services" / "frontend" / "static" / "icon.svg"  # that of both pages, too
    files.append(File.generated(config, "images/icon.svg", abs_src_path=str(icon)))
    described = http_page.openapi()
    for name, content in (
        ("openapi.json", json.dumps(described)),
        ("http-reference.md", http_page.page(described)),
        ("nats-reference.md", nats_page.page(asyncapi.document())),
    ):
        files.append(File.generated(config, name, content=content))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links of pages in docs/; others were made right when they were added. And what a search
    finds first.
    """
    page.meta.update(found_by(page.file.src_uri))
    if page.file.generated_by:
        return markdown
    return for_site(f"docs/{page.file.src_uri}", markdown)


def _shown() -> set[str]:
    """Files that pages link to and that are no pages."""
    pages = [*OUTSIDE, *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
    linked = {target for path in pages for target in targets(path, (ROOT / path).read_text())}
    return {
        path
        for path in linked - {*OUTSIDE}
        if not path.startswith(("docs/", "..")) and (ROOT / path).is_file()
    }


def _as_page(path: str) -> str:
    text = (ROOT / path).read_text()
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n````{language}\n{text}````\n"
