"""`symphony bench families`: the page says what the code does."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from loadtest.bench.families.command import hold, known_families, run, variants_of
from loadtest.bench.families.page import MARK, line, tables, write
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


@pytest.mark.parametrize("family", ["gpt2", "diffllama", "falcon", "mpt"])
def test_the_page_says_what_the_code_does(family: str) -> None:
    """If this fails: `./symphony bench families --write docs/models.md`."""
    kept = PAGE.read_text().partition(MARK)[2]
    for variant, options in variants_of(family).items():
        assert line(hold(family, variant, options)) in kept


def test_all_families_are_in_the_page() -> None:
    told = PAGE.read_text()
    assert [family for family in known_families() if f"| `{family}` |" not in told] == []


@pytest.mark.parametrize("table", [NEEDED, VARIANTS])
def test_options_are_of_families(table: Mapping[str, object]) -> None:
    assert table.keys() <= set(known_families())


def test_encoders_are_tried_as_decoders_too() -> None:
    assert list(variants_of("bert")) == [DEFAULT, "is_decoder"]
    assert list(variants_of("bart")) == [DEFAULT]


def test_a_family_counts_by_its_best_variant() -> None:
    found = {verdict: families_of(ROWS, verdict) for verdict in ("right", "refused", "not tried")}
    assert found == {"right": ["a"], "refused": ["b"], "not tried": ["c"]}


def test_the_tables_are_written_behind_the_mark(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"# Mine\n\n{MARK}\nold")
    write(file, ROWS)
    assert file.read_text() == f"# Mine\n\n{MARK}\n\n{tables(ROWS)}"
    assert "| `a` | x | it differs |" in tables(ROWS)
    assert "1 families of 3 are served" in tables(ROWS)
    file.write_text("# Mine")
    with pytest.raises(InvalidRequest, match="there is no line"):
        write(file, ROWS)


def test_what_transformers_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="families nonsense"):
        run(["nonsense"])
