"""`symphony bench disk`, in small: all that it tells."""

from pathlib import Path

import pytest

from loadtest.bench.disk import run
from loadtest.bench.disk.starting import start_s
from services.kvstore.tiers.disk.start import Started, start_disk
from shared.errors import InvalidRequest


def test_it_fills_replaces_reads_and_starts(tmp_path: Path) -> None:
    small = ["--page-kb", "4,12", "--layers", "2", "--gb", "0.001", "--rounds", "1"]
    result = run([*small, "--start-pages", "101", "--folder", str(tmp_path)])
    assert result.pop("start_s") > 0
    by_size = result.pop("by_page_kb")
    assert set(by_size) == {"4", "12"}
    for each in by_size.values():
        assert min(each["fresh_put_gb_s"], each["churn_put_gb_s"], each["read_gb_s"]) > 0
        assert each["churn_over_fresh"] > 0
        assert ("cold_read_gb_s" in each) == each["page_cache_dropped"]
    assert result == {"gb": 0.001, "layers": 2, "start_pages": 101}
    assert not list(tmp_path.iterdir()), "it leaves nothing"


def test_the_start_is_on_so_many_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Started] = []

    def seeing(folder: Path, bytes_max: int) -> Started:
        seen.append(start_disk(folder, bytes_max))
        return seen[-1]

    monkeypatch.setattr("loadtest.bench.disk.starting.start_disk", seeing)
    assert start_s(tmp_path, num_pages=99, num_layers=2) > 0
    scan = seen[0].scan
    assert (len(scan.blocks), scan.num_deleted) == (50, 0)
    assert len({block.owner for block in scan.blocks}) == 2


@pytest.mark.parametrize("argv", [["--gb", "0"], ["--page-kb", "x"], ["--start-pages", "0"]])
def test_options_that_mean_nothing_are_refused(argv: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        run(argv)
