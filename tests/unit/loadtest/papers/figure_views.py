"""Looks at figures of recorded results, as a run would make them of what it measured."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from loadtest.papers.base import Figure, FigureSet, Row
from loadtest.papers.report import Report

RECORDED = Path(__file__).parent / "recorded"
PICTURE_BYTES = (2_000, 120_000)


def recorded(figures: FigureSet) -> dict[Any, dict[str, Any]]:
    """Results of tiny runs, by what measures them."""
    by_key = orjson.loads((RECORDED / f"{figures.name}.json").read_bytes())
    return {each.measure: by_key[each.key] for each in figures.figures if each.key in by_key}


class NoSteps:
    """In place of `PlannedSteps`: tells what was asked for; a step takes as many ms as it has
    tokens and different adapters.

    Attributes:
        asked: adapters, context and new tokens of each step.
        ranks: of the adapters that are there.
    """

    def __init__(
        self, model: object, rows_max: int, context_max: int, ranks: Sequence[int] = ()
    ) -> None:
        self.rows_max, self.context_max, self.ranks = rows_max, context_max, ranks
        self.asked: list[tuple[list[int], int, int]] = []

    def ms(self, adapters: Sequence[int], context: int, new: int = 1) -> float:
        assert len(adapters) <= self.rows_max and context <= self.context_max
        assert max(adapters) < len(self.ranks), "no such adapter"
        runs = [adapter for adapter, _ in groupby(adapters)]
        assert len(runs) == len(set(runs)), "an adapter's rows are apart"
        self.asked.append((list(adapters), context, new))
        return len(adapters) * new + len(set(adapters))

    def close(self) -> None:
        pass


def without_steps(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[NoSteps]:
    """Have a figure measure nothing real; what was made of it is in the list."""
    made: list[NoSteps] = []

    def make(*given: Any) -> NoSteps:
        made.append(NoSteps(*given))
        return made[-1]

    monkeypatch.setattr(module, "make_llama", lambda shape, dtype: None)
    monkeypatch.setattr(module, "PlannedSteps", make)
    return made


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
        told = row.ours and row.how.startswith(("real: ", "simulated: "))
        assert told or (not row.ours and row.how == "not measured"), row
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
