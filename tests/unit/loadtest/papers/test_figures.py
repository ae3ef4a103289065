"""Every figure of deferred batching, measured at a tiny size, drawn, and put on the page; and what
sets of figures have in common."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from loadtest.bench.figures import SETS, choose, figure_set, run, workplace
from loadtest.papers.base import TINY, Alone, Figure, FigureSet, Row
from loadtest.papers.cases import sample_workloads, workload
from loadtest.papers.deferred import DEFERRED, INTRO, SET
from loadtest.papers.report import ROWS_ALONE_MAX, Report
from shared.errors import InvalidRequest

PICTURE_BYTES_MAX = 120_000


IMBALANCES = {name: {"rate": [0.1], "memory": [0.2]} for name in ("solver", "random")}
SOME = replace(SET, name="some", title="Some figures")

# Some figures are views of the same runs: one of them stands for all.
MEASURED = list({figure.measure: figure for figure in reversed(DEFERRED)}.values())


@pytest.mark.parametrize("figure", MEASURED, ids=lambda figure: figure.key)
def test_figure(figure: Figure, tmp_path: Path) -> None:
    results = figure.measure(Alone(), TINY)
    views = [other for other in DEFERRED if other.measure is figure.measure]
    page = tmp_path / "page.md"
    report = Report(SOME, tmp_path / "figures", page)
    for view in views:
        report.add(view, results, "tiny", 1.0)
    report.write()
    for view in views:
        picture = tmp_path / "figures" / f"some-{view.key}.png"
        assert 2_000 < picture.stat().st_size < PICTURE_BYTES_MAX
        assert f"(figures/{picture.name})" in page.read_text()
        assert all(isinstance(row, Row) and row.ours for row in view.rows(results))
    kept = orjson.loads((tmp_path / "figures" / "some.json").read_bytes())
    assert list(kept) == [view.key for view in views]


def test_report_keeps_what_earlier_runs_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    by_key = {figure.key: figure for figure in DEFERRED}
    for _ in range(2):
        report = Report(SOME, tmp_path / "figures", page)
        if not page.exists():
            report.add(by_key["16"], IMBALANCES, "full", 3.0)
        report.write()
    assert "| full run, 3 s |" in page.read_text()
    assert "| median rate imbalance, random | 0.1 |" in page.read_text()


def test_workloads_are_the_same_every_time() -> None:
    cases = sample_workloads(12)
    assert cases == sample_workloads(12)
    assert sum(case["model"] == "mixed" for case in cases) >= 2
    mixed = next(case for case in cases if case["model"] == "mixed")
    assert len(workload(mixed).models) == 35


def test_choose() -> None:
    assert [figure.key for figure in choose(SET, "13,table2")] == ["13", "table2"]
    assert choose(SET, None) == list(DEFERRED)
    with pytest.raises(InvalidRequest, match="--only 3: use some of table2, 1, 2"):
        choose(SET, "2,3")


@pytest.mark.parametrize("name", SETS)
def test_sets_have_names_and_keys_of_their_own(name: str) -> None:
    figures = figure_set(name)
    assert figures.name == name
    keys = [figure.key for figure in figures.figures]
    assert len(set(keys)) == len(keys) > 5
    assert all(figure.title.lower().startswith(_spelled(figure.key)) for figure in figures.figures)


def _spelled(key: str) -> str:
    """As in a title.

    >>> _spelled("table2"), _spelled("section4.4"), _spelled("3-left"), _spelled("loads")
    ('table 2', 'section 4.4', 'figure 3, left', 'other loads')
    """
    if key == "loads":  # what no paper has
        return "other loads"
    for kind in ("table", "section"):
        if key.startswith(kind):
            return key.replace(kind, f"{kind} ")
    return f"figure {key.replace('-', ', ')}"


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="figures 'orca': use one of deferred, punica, caraserve"
    ):
        run(["orca"])


def test_times_are_measured_alone() -> None:
    for name in SETS:
        figures = figure_set(name)
        assert figures.is_timed == (name not in {"deferred", "symphony"})
    told: list[tuple[int, int]] = []
    with workplace(replace(SET, is_timed=True), 2) as work_of:
        work = work_of(lambda *numbers: told.append(numbers))
        assert isinstance(work, Alone)
        assert work.map(lambda part: 2 * part, [1, 2]) == [2, 4]
    assert told == [(2, 0), (0, 1), (0, 1)]


def page_of(figures: FigureSet, folder: Path) -> list[str]:
    """Lines of a page whose figures all have `IMBALANCES`."""
    report = Report(figures, folder / "figures", folder / "page.md")
    for figure in figures.figures:
        report.add(figure, IMBALANCES, "tiny", 1.0)
    report.write()
    return (folder / "page.md").read_text().splitlines()


def with_rows(key: str, *rows: Row) -> Figure:
    drawn = next(figure for figure in DEFERRED if figure.key == "16")
    return replace(drawn, key=key, rows=lambda _: list(rows))


def test_the_page_shows_what_the_paper_has_a_number_for(tmp_path: Path) -> None:
    compared = with_rows("16", Row("a", "1", "2", "real: X"), Row("b", "", "3", "real: X"))
    alone = with_rows("17", *(Row(f"c{number}", "", "4") for number in range(9)))
    lines = page_of(replace(SET, figures=(compared, alone)), tmp_path)
    assert lines[2].startswith(
        f"Written by `./symphony bench figures deferred`; do not edit. {INTRO} Tables show"
    )
    at = lines.index("| tiny run, 1 s | paper | here |")
    assert lines[at - 2 : at + 3] == ["Real: X.", "", lines[at], "|---|---|---|", "| a | 1 | 2 |"]
    assert not any(line.startswith("| b") for line in lines)
    at = lines.index("| tiny run, 1 s | here |")
    assert lines[at + 2] == "| c0 | 4 |" and len(lines) == at + 2 + ROWS_ALONE_MAX


def test_how_rows_came_about_is_a_column_where_they_differ(tmp_path: Path) -> None:
    mixed = with_rows("16", Row("a", "1", "2"), Row("b", "1", "3", "real: X"))
    lines = page_of(replace(SET, figures=(mixed,)), tmp_path)
    at = lines.index("| tiny run, 1 s | paper | here | how |")
    assert lines[at + 1 :] == ["|---|---|---|---|", "| a | 1 | 2 |  |", "| b | 1 | 3 | real: X |"]


def test_a_page_is_written_again_from_the_numbers_that_are_kept(tmp_path: Path) -> None:
    before = page_of(replace(SET, figures=(with_rows("16", Row("a", "1", "2")),)), tmp_path)
    again = replace(SET, figures=(with_rows("16", Row("z", "1", "9")),))
    report = Report(again, tmp_path / "figures", tmp_path / "page.md")
    assert report.redraw() == ["16"]
    after = (tmp_path / "page.md").read_text().splitlines()
    assert [line.replace("| z | 1 | 9 |", "| a | 1 | 2 |") for line in after] == before != after


def test_figures_that_do_not_exist() -> None:
    with pytest.raises(InvalidRequest, match="no set of figures 'all'"):
        run(["all"])
    with pytest.raises(InvalidRequest, match="--only 99"):
        run(["deferred", "--only", "99"])
