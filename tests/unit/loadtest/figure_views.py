"""Draws recorded results, as a run would what it measured."""

from pathlib import Path
from typing import Any

import orjson

from loadtest.figures.base import Figure, FigureSet, Row
from loadtest.figures.report import Report

RECORDED = Path(__file__).parent / "recorded"
PICTURE_BYTES = (2_000, 120_000)


def recorded(figures: FigureSet) -> dict[Any, dict[str, Any]]:
    """Results of tiny runs, by what measures them."""
    by_key = orjson.loads((RECORDED / f"{figures.name}.json").read_bytes())
    return {each.measure: by_key[each.key] for each in figures.figures if each.key in by_key}


def view(figures: FigureSet, figure: Figure, results: dict[str, Any], folder: Path) -> list[Row]:
    """Put a figure on a page in `folder`, and look at what is there.

    Raises:
        AssertionError: a picture is empty or large, or a row does not say how it was come to.
    """
    page = folder / "page.md"
    report = Report(figures, folder / "figures", page)
    report.add(figure, results, "tiny", 1.0)
    report.write()
    picture = folder / "figures" / f"{figures.name}-{figure.key}.png"
    assert PICTURE_BYTES[0] < picture.stat().st_size < PICTURE_BYTES[1]
    assert f"(figures/{picture.name})" in page.read_text()
    rows = figure.rows(results)
    for row in rows:
        assert row.how.startswith(("real: ", "simulated: ")) if row.ours else row.how, row
        assert "|" not in "".join(row), row
    assert len({row.what for row in rows}) == len(rows) > 0, "two rows say the same"
    return rows
