"""`symphony bench hosts`, in small: both processes, and all that it tells."""

import socket

import pytest

from loadtest.bench.hosts import run
from loadtest.bench.hosts.crossover import Length
from loadtest.bench.hosts.relay import Relay
from loadtest.bench.hosts.turns import Cut, summary
from loadtest.links import shaped_link
from shared.errors import InvalidRequest


def test_pages_come_by_every_way() -> None:
    small = ["--page-kb", "4", "--layers", "2", "--blocks", "8", "--rounds", "1", "--pages-only"]
    result = run(small)
    for name in ("raw_tcp_gb_s", "peer_gb_s", "disk_gb_s", "memcpy_gb_s", "fill_gb_s"):
        assert result.pop(name) > 0
    assert result.pop("peer_over_raw_tcp") > 0
    assert result.pop("fill_over_memcpy") > 0
    assert result == {"page_kb": 4.0, "mb": 0, "link_gbit": None}


@pytest.mark.parametrize(
    "argv",
    [
        ["--blocks", "0"], ["--link-gbit", "0"], ["--page-kb", "0"], ["--lengths", "63"],
        ["--cuts", "0"],
    ],
)  # fmt: skip
def test_options_that_mean_nothing_are_refused(argv: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        run(argv)


def test_it_says_why_it_cannot_shape_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidRequest, match="cannot shape a link without `ip`"), shaped_link(1.0):
        pass


def test_a_decision_is_right_if_it_is_the_faster_way_or_as_fast() -> None:
    computed = Length(64, fetch_ms=30, compute_ms=20, decided_ms=20, share_fetched=0.0)
    mixed = Length(512, fetch_ms=60, compute_ms=90, decided_ms=50, share_fetched=0.4)
    fetched = Length(1024, fetch_ms=80, compute_ms=180, decided_ms=120, share_fetched=1.0)
    wrong = Length(2048, fetch_ms=100, compute_ms=300, decided_ms=250, share_fetched=0.2)
    found = summary([computed, mixed, fetched], [Cut(400, 16), Cut(480, 16), Cut(5000, 15)])
    assert found["crossover_tokens"] == 64 + round(10 / 40 * (512 - 64))
    assert (found["decided_tokens"], found["is_crossover_used"]) == (1024, True)
    assert found["decided_over_best"] == 1.5
    assert (found["cut_to_token_ms"], found["cut_over_ms"], found["cut_tokens"]) == (480, 300, 15)
    either = Length(64, fetch_ms=21, compute_ms=20, decided_ms=30, share_fetched=1.0)
    assert either.is_right and not wrong.is_right
    found = summary([computed, mixed, fetched, wrong], [Cut(100, 16)])
    assert (found["decided_tokens"], found["is_crossover_used"]) == (None, False)
    assert found["cut_over_ms"] == 0


def test_a_link_that_is_cut_passes_so_much_and_then_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Relay(listener.getsockname()[1]) as relay,
    ):
        host, port = relay.address.split(":")
        with socket.create_connection((host, int(port))) as near:
            far, _ = listener.accept()
            with far:
                near.sendall(b"ask")
                assert far.recv(3) == b"ask"
                relay.cut_after(4)
                assert relay.cut_at_s is None
                far.sendall(b"answer")
                near.settimeout(5)
                assert near.recv(6) == b"answ"
                near.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    near.recv(6)
                assert relay.cut_at_s is not None
                relay.mend()
                assert near.recv(6) == b"er"
