"""Diagrams equal what their tables draw, and describe themselves to screen readers."""

from xml.etree import ElementTree

import pytest

from cli.base.children import ROOT
from cli.docs.drawings import DRAWINGS, files
from cli.docs.lives import Message
from tests.docs.blocks import all_blocks

SVG = "{http://www.w3.org/2000/svg}"


def test_the_files_are_what_the_tables_draw() -> None:
    for path, text in files().items():
        assert path.read_text() == text, "python -m cli.docs.drawings"


def described(name: str) -> ElementTree.Element:
    """A diagram that describes itself."""
    drawn = ElementTree.parse(ROOT / "docs" / "images" / name).getroot()
    titles = [drawn.find(f"{SVG}title"), drawn.find(f"{SVG}desc")]
    assert drawn.get("role") == "img"
    assert drawn.get("aria-labelledby") == "title desc"
    assert [found is not None and bool(found.text) for found in titles] == [True, True]
    return drawn


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_sequence_has_all_of_its_messages_and_a_description(name: str) -> None:
    drawn = described(name)
    texts = {each.text for each in drawn.iter(f"{SVG}text")}
    drawing = DRAWINGS[name]
    assert set(drawing.participants) <= texts
    assert {step.text for step in drawing.steps if isinstance(step, Message)} <= texts


def test_the_parts_have_a_description_and_all_of_the_services() -> None:
    texts = {(each.text or "").lower() for each in described("architecture.svg").iter(f"{SVG}text")}
    services = {path.parent.name for path in (ROOT / "services").glob("*/__main__.py")}
    assert len(services) == 5
    assert services <= texts


def test_nothing_is_left_to_be_drawn_by_a_script() -> None:
    assert not [block.place for block in all_blocks({"mermaid"})]
