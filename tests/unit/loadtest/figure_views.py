"""Looks at figures of recorded results, as a run would make them of what it measured."""

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


def look(figure: Figure, results: dict[str, Any]) -> None:
    """At its plots and its rows.

    Raises:
        AssertionError: a plot is empty or has no names, or a row does not say how it was come to.
    """
    drawing = figure.draw(results)
    drawing.set_layout_engine("none")  # which takes longer than all the rest
    drawing.draw_without_rendering()
    for axes in drawing.axes:
        assert axes.has_data() and axes.get_title()
        assert axes.get_xlabel() or axes.get_xticklabels()
    assert any(axes.get_ylabel() for axes in drawing.axes)
    rows = figure.rows(results)
    for row in rows:
        assert row.how.startswith(("real: ", "simulated: ")) if row.ours else row.how, row
        assert "|" not in "".join(row), row
    assert len({row.what for row in rows}) == len(rows) > 0, "two rows say the same"


def page_with(
    figures: FigureSet, figure: Figure, results: dict[str, Any], folder: Path
) -> tuple[str, list[Row]]:
    """The page of a run that measured one figure; its rows.

    Raises:
        AssertionError: its picture is empty or large, or not on the page.
    """
    page = folder / "page.md"
    report = Report(figures, folder / "figures", page)
    report.add(figure, results, "tiny", 1.0)
    report.write()
    picture = folder / "figures" / f"{figures.name}-{figure.key}.png"
    assert PICTURE_BYTES[0] < picture.stat().st_size < PICTURE_BYTES[1]
    text = page.read_text()
    assert f"(figures/{picture.name})" in text
    return text, figure.rows(results)
