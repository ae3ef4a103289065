"""``symphony bench core``, small."""

import pytest

from loadtest.bench.core import run
from loadtest.bench.core.scheduler import SchedulerBench
from loadtest.bench.core.timing import Took
from shared.errors import InvalidRequest
from shared.ids import SessionId

SMALL = ["--turns", "2", "--rounds", "1"]


def test_every_decision_is_timed() -> None:
    small = ["--context", "640", "--layers", "2", "--steps", "2"]
    figures = run([*SMALL, *small, "--only", "worker,kvstore"])
    worker = {"stage", "loaded", "leave", "make_room", "expect", "prefetch"}
    assert worker | {"decode_1000", "decode_640", "kvstore_stage_from_disk"} <= figures.keys()
    assert all(each["pages"] > 0 for name, each in figures.items() if "decode" not in name)


def test_a_fleet_s_events_are_timed_by_kind() -> None:
    figures = run([*SMALL, "--only", "scheduler", "--workers", "1,24"])
    assert figures.keys() == {"scheduler_1", "scheduler_24"}
    kinds = {
        "place_new", "place_known", "place_known_8_hosts", "expect", "place_announced", "end",
        "report_0", "report_2", "other_placed", "other_end",
    }  # fmt: skip
    assert all(each.keys() == kinds and min(each.values()) > 0 for each in figures.values())


def test_sessions_are_as_known_as_their_names_say() -> None:
    bench = SchedulerBench(16, Took())
    bench.fill(2)
    known = bench.some_known(0)
    bench.announce(known[:4])
    assert bench.reasons(known[:4]) == {"reserved"}
    assert "affinity" in bench.reasons(known[4:8])
    assert "affinity" not in bench.reasons([SessionId("never seen")])


def test_a_tracker_s_events_are_timed_and_its_agents_foreseen() -> None:
    tracker = run([*SMALL, "--only", "tracker", "--advisories", "4000"])["tracker"]
    assert tracker.keys() == {
        "advisory", "placed", "arrival_announced", "arrival_unannounced", "agent_arrival",
        "agent_left", "foreseen_a_turn",
    }  # fmt: skip
    assert 0.5 < tracker["foreseen_a_turn"] <= 1


def test_a_frontend_streams_every_token() -> None:
    frontend = run([*SMALL, "--only", "frontend", "--streams", "40"])["frontend"]
    assert frontend["streams"] == 40 and frontend["token_bytes"] > 100
    assert frontend["streams_at_25_per_s"] == pytest.approx(40_000 / frontend["token_us"], abs=1)
    assert frontend["token_alone_us"] > 0 and frontend["report_us"] > 0


def test_names_are_found_and_the_base_is_served_beside_them() -> None:
    names = run([*SMALL, "--only", "names", "--names", "50"])["names"]
    assert names["names"] == 50
    assert min(names["asked_ms"], names["known_us"], names["base_alone_us"]) > 0
    assert names["base_ratio"] == pytest.approx(
        names["base_beside_us"] / names["base_alone_us"], abs=0.01
    )


def test_messages_are_read_and_written() -> None:
    figures = run([*SMALL, "--only", "messages"])
    assert figures["decode"].keys() == figures["encode"].keys() >= {"report_64", "step_output_32"}


@pytest.mark.parametrize(
    "options", ["--only nothing", "--workers 8,x", "--workers 0", "--turns 0", "--rounds 0"]
)
def test_options_are_checked(options: str) -> None:
    with pytest.raises(InvalidRequest):
        run(options.split())
