"""`symphony bench families`: the page says what the code does."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadtest.bench.families.command import hold, known_families, run, variants_of
from loadtest.bench.families.page import MARK, sections, short_reason, write
from loadtest.bench.families.rows import Row, families_of
from loadtest.bench.families.variants import DEFAULT, NEEDED, VARIANTS
from shared.errors import InvalidRequest

PAGE = Path(__file__).parents[4] / "docs" / "models.md"
ROWS = [
    Row("a", "A", "x", "refused", "it differs (at position 3 by 0.2)"),
    Row("a", "A", "y", "right", ""),
    Row("b", "B", "x", "refused", "no"),
    Row("c", "C", "x", "not tried", "a | b"),
]


def says(page: str, row: Row) -> bool:
    """Whether the page has this variant where it belongs."""
    text = page.partition(MARK)[2]
    if row.verdict == "right":
        text = text.partition("## Served")[2].partition("## Refused")[0]
    else:
        reason = re.escape(short_reason(row.reason))
        found = re.search(rf"^\| {reason} \| (.*) \|$", text, re.MULTILINE)
        text = "" if found is None else found[1]
    entry = re.search(rf"`{re.escape(row.family)}`(?: \(([^)]*)\))?", " ".join(text.split()))
    if entry is None:
        return False
    variant = "default" if row.variant == DEFAULT else row.variant
    variants = entry[1].split("; ") if entry[1] else None
    is_alone = variants is None and (variant == "default" or row.verdict != "right")
    return is_alone or variant in (variants or [])


@pytest.mark.parametrize("family", ["gpt2", "diffllama", "falcon", "mpt"])
def test_the_page_says_what_the_code_does(family: str) -> None:
    """If this fails: `./symphony bench families --write docs/models.md`."""
    page = PAGE.read_text()
    for variant, options in variants_of(family).items():
        row = hold(family, variant, options)
        assert says(page, row), row


def test_tables_say_what_the_code_does(tmp_path: Path) -> None:
    """If this fails: `./symphony bench families --tables --write docs/models.md`."""
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    run(["--tables", "--write", str(copy)])
    assert copy.read_text() == PAGE.read_text()
    copy.write_text(MARK)
    with pytest.raises(InvalidRequest, match="there are no lines"):
        run(["--tables", "--write", str(copy)])
    with pytest.raises(InvalidRequest, match="--write says"):
        run(["--tables"])


def test_all_families_are_in_the_page() -> None:
    page = PAGE.read_text()
    assert [family for family in known_families() if f"`{family}`" not in page] == []


@pytest.mark.parametrize("table", [NEEDED, VARIANTS])
def test_options_are_of_families(table: Mapping[str, object]) -> None:
    assert table.keys() <= set(known_families())


def test_encoders_are_tried_as_decoders_too() -> None:
    assert list(variants_of("bert")) == [DEFAULT, "is_decoder"]
    assert list(variants_of("bart")) == [DEFAULT]


def test_a_family_counts_by_its_best_variant() -> None:
    found = {verdict: families_of(ROWS, verdict) for verdict in ("right", "refused", "not tried")}
    assert found == {"right": ["a"], "refused": ["b"], "not tried": ["c"]}


def test_sections_are_written_behind_the_mark(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"# Mine\n\n{MARK}\nold")
    write(file, ROWS)
    assert file.read_text() == f"# Mine\n\n{MARK}\n\n{sections(ROWS)}"
    assert "`a` (y)\n" in sections(ROWS)
    assert "| it differs | `a` (x) |\n" in sections(ROWS)
    assert "| no | `b` |\n" in sections(ROWS)
    assert "1 families of 3 are served" in sections(ROWS)
    assert sections(ROWS).endswith("\n`c`\n")
    assert says(file.read_text(), Row("a", "A", "y", "right", ""))
    assert not says(file.read_text(), Row("a", "A", "z", "right", ""))
    assert not says(file.read_text(), Row("b", "B", "x", "refused", "other"))
    file.write_text("# Mine")
    with pytest.raises(InvalidRequest, match="there is no line"):
        write(file, ROWS)


def test_what_transformers_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="families nonsense"):
        run(["nonsense"])
