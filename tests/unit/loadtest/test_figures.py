"""Every figure, measured at a tiny size, drawn, and put on the page."""

from pathlib import Path

import orjson
import pytest

from loadtest.bench.figures import choose
from loadtest.figures.base import TINY, Alone, Figure, Row
from loadtest.figures.cases import sample_workloads, workload
from loadtest.figures.deferred import DEFERRED
from loadtest.figures.report import Report
from shared.errors import InvalidRequest

PICTURE_BYTES_MAX = 120_000


# Some figures are views of the same runs: one of them stands for all.
MEASURED = list({figure.measure: figure for figure in reversed(DEFERRED)}.values())


@pytest.mark.parametrize("figure", MEASURED, ids=lambda figure: figure.key)
def test_figure(figure: Figure, tmp_path: Path) -> None:
    results = figure.measure(Alone(), TINY)
    views = [other for other in DEFERRED if other.measure is figure.measure]
    page = tmp_path / "page.md"
    report = Report("some", "Some figures", DEFERRED, tmp_path / "figures", page)
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
    results = {
        "16": {
            "time_limit_s": 1.0,
            **{name: {"rate": [0.1], "memory": [0.2]} for name in ("solver", "random")},
        },
    }
    for _ in range(2):
        report = Report("some", "Some figures", DEFERRED, tmp_path / "figures", page)
        if not page.exists():
            report.add(by_key["16"], results["16"], "full", 3.0)
        report.write()
    assert "| full run, 3 s |" in page.read_text()
    assert "| median rate imbalance, random |  | 0.1 |" in page.read_text()


def test_workloads_are_the_same_every_time() -> None:
    cases = sample_workloads(12)
    assert cases == sample_workloads(12)
    assert sum(case["model"] == "mixed" for case in cases) >= 2
    mixed = next(case for case in cases if case["model"] == "mixed")
    assert len(workload(mixed).models) == 35


def test_choose() -> None:
    assert [figure.key for figure in choose("13,table2")] == ["13", "table2"]
    assert choose(None) == list(DEFERRED)
    with pytest.raises(InvalidRequest, match="--only 3: use some of table2, 1, 2"):
        choose("2,3")
