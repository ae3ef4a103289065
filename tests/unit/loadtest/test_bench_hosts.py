"""`symphony bench hosts`, in small: both processes, and all that it tells."""

import pytest

from loadtest.bench.hosts import run
from loadtest.bench.hosts.link import shaped_link
from shared.errors import InvalidRequest


def test_pages_come_by_every_way() -> None:
    small = ["--page-kb", "4", "--layers", "2", "--blocks", "8", "--rounds", "1"]
    result = run(small)
    for name in ("raw_tcp_gb_s", "peer_gb_s", "disk_gb_s", "memcpy_gb_s", "fill_gb_s"):
        assert result.pop(name) > 0
    assert result.pop("peer_over_raw_tcp") > 0
    assert result.pop("fill_over_memcpy") > 0
    assert result == {"page_kb": 4.0, "mb": 0, "link_gbit": None}


@pytest.mark.parametrize("argv", [["--blocks", "0"], ["--link-gbit", "0"], ["--page-kb", "0"]])
def test_options_that_mean_nothing_are_refused(argv: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        run(argv)


def test_it_says_why_it_cannot_shape_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidRequest, match="cannot shape a link without `ip`"), shaped_link(1.0):
        pass
