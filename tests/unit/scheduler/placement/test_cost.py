"""What it costs to have a turn on a worker."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.scheduler.core.fleet.kinds import GUESSED, Steps
from services.scheduler.core.fleet.records import SLICE_NS, ExpectedTurns
from services.scheduler.core.fleet.speeds import DEFAULT_SPEEDS
from services.scheduler.core.placement.cost import TurnWork, cost_of
from shared.ids import HostId, ModelId
from shared.locations import OBJECTS
from shared.wire.messages import ModelSpeeds

amounts = st.floats(0, 1e5, allow_subnormal=False)
speeds_ms = st.floats(1e-3, 1e3)
speeds = st.builds(Steps, token_ms=speeds_ms, step_ms=speeds_ms, row_ms=speeds_ms)
stays = st.builds(
    TurnWork,
    num_rows=st.floats(0, 500),
    num_seats=st.integers(0, 64),
    num_waiting_tokens=amounts,
    num_new_tokens=amounts,
    num_history_tokens=amounts,
    fetch_ms=amounts,
    ahead_ms=amounts,
    adapter_ms=amounts,
)
few = settings(max_examples=40)
HUGE = 10**400  # too large for a float
GROWING = ("num_rows", "num_waiting_tokens", "num_new_tokens", "fetch_ms", "adapter_ms")


@few
@given(speeds, stays, st.sampled_from(GROWING), amounts)
def test_more_of_anything_never_costs_less(
    fast: Steps, work: TurnWork, name: str, more: float
) -> None:
    worse = replace(work, **{name: getattr(work, name) + more})
    assert cost_of(fast, worse).total_ms >= cost_of(fast, work).total_ms * (1 - 1e-12)


@few
@given(speeds, stays, st.floats(1, 10))
def test_longer_history_never_costs_less(fast: Steps, work: TurnWork, factor: float) -> None:
    num_tokens, fetch_ms = work.num_history_tokens * factor, work.fetch_ms * factor
    longer = replace(work, num_history_tokens=num_tokens, fetch_ms=fetch_ms, ahead_ms=0)
    assert cost_of(fast, longer).total_ms >= cost_of(fast, replace(work, ahead_ms=0)).total_ms


@few
@given(speeds, stays, amounts)
def test_time_before_a_turn_comes_never_costs(fast: Steps, work: TurnWork, more: float) -> None:
    later = replace(work, ahead_ms=work.ahead_ms + more)
    assert cost_of(fast, later).total_ms <= cost_of(fast, work).total_ms * (1 + 1e-12)


@few
@given(speeds, stays, st.sampled_from(("token_ms", "step_ms", "row_ms")), speeds_ms)
@example(
    Steps(2.0, 1.0, 1.0), TurnWork(num_rows=1, num_history_tokens=91, fetch_ms=240), "token_ms", 1
)
def test_a_slower_worker_never_costs_less(
    fast: Steps, work: TurnWork, name: str, more: float
) -> None:
    slow = replace(fast, **{name: getattr(fast, name) + more})
    assert cost_of(slow, work).total_ms >= cost_of(fast, work).total_ms * (1 - 1e-12)


def test_history_is_fetched_or_computed_whichever_is_sooner() -> None:
    fast = Steps(token_ms=1.0, step_ms=10.0, row_ms=0.05)
    far = TurnWork(num_history_tokens=500, fetch_ms=400)
    assert cost_of(fast, far).kv_ms == 420, "it takes something of the link besides"
    assert cost_of(fast, replace(far, fetch_ms=4000)).kv_ms == 500


def test_computing_history_costs_those_beside_too() -> None:
    fetched = TurnWork(num_rows=2, num_history_tokens=500, fetch_ms=10)
    computed = replace(fetched, fetch_ms=1e6)
    more_ms = cost_of(GUESSED, computed).others_ms - cost_of(GUESSED, fetched).others_ms
    assert round(more_ms) == 2 * 500 * GUESSED.token_ms


def test_what_is_brought_up_before_a_turn_comes_costs_next_to_nothing() -> None:
    far = TurnWork(num_history_tokens=5000, fetch_ms=400, ahead_ms=1000)
    assert cost_of(GUESSED, far).kv_ms == 20


def test_without_a_seat_it_waits_for_one() -> None:
    held = TurnWork(num_rows=7, num_seats=8)
    full = TurnWork(num_rows=8, num_seats=8)
    one_more_ms = cost_of(GUESSED, replace(held, num_rows=6)).queue_ms
    assert cost_of(GUESSED, held).queue_ms - one_more_ms < 1
    assert cost_of(GUESSED, full).queue_ms - cost_of(GUESSED, held).queue_ms > 100


@few
@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 50))
def test_what_is_removed_was_never_there(times: list[int], about: int) -> None:
    arrivals = ExpectedTurns()
    for at in times:
        arrivals.add(at * SLICE_NS)
    at_ns = about * SLICE_NS
    before = arrivals.about(at_ns, len(times))
    arrivals.add(at_ns)
    more = arrivals.about(at_ns, len(times) + 1) - before
    assert more == pytest.approx(1), "it runs beside"
    arrivals.remove(at_ns)
    for at in times:
        arrivals.remove(at * SLICE_NS)
    assert arrivals == ExpectedTurns()


def test_the_nearer_two_turns_are_expected_the_more_they_count() -> None:
    arrivals = ExpectedTurns()
    arrivals.add(20 * SLICE_NS)
    counts = [arrivals.about(at * SLICE_NS, 1) for at in (20, 21, 25)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[1] > counts[2] > 0


def test_what_is_no_speed_is_not_heard() -> None:
    nonsense = ModelSpeeds(
        model_id=ModelId("m"),
        token_ms=float("nan"),
        step_ms=-1.0,
        row_ms=float("inf"),
        block_bytes=-5,
        load_bytes_per_s=1e300,
        peer_bytes_per_s={HostId("a"): float("nan"), HostId("b"): 0.0},
    )
    assert DEFAULT_SPEEDS.updated_by(nonsense, DEFAULT_SPEEDS.block_tokens) == DEFAULT_SPEEDS


@pytest.mark.parametrize("number", [HUGE, 1e-9, 1e12, -1, 0], ids=range(5))
def test_what_no_device_does_is_not_heard(number: float) -> None:
    wild = ModelSpeeds(
        model_id=ModelId("m"), token_ms=number, step_ms=number, row_ms=number,
        peer_bytes_per_s={HostId("a"): number * 1000, OBJECTS: number * 1000},
    )  # fmt: skip
    assert DEFAULT_SPEEDS.updated_by(wild, DEFAULT_SPEEDS.block_tokens) == DEFAULT_SPEEDS


@pytest.mark.parametrize("number", [HUGE, -5, 0], ids=range(3))
def test_blocks_that_cannot_be_are_not_heard(number: int) -> None:
    wild = ModelSpeeds(model_id=ModelId("m"), block_bytes=number)
    assert DEFAULT_SPEEDS.updated_by(wild, number) == DEFAULT_SPEEDS


def test_steps_are_heard_with_what_rows_add_or_not_at_all() -> None:
    for step_ms, row_ms in ((50, 0), (0, 5)):
        told = ModelSpeeds(model_id=ModelId("m"), step_ms=step_ms, row_ms=row_ms)
        assert DEFAULT_SPEEDS.updated_by(told, 64) == DEFAULT_SPEEDS


def test_links_that_were_not_measured_are_as_fast_as_those_that_were() -> None:
    links = {HostId("a"): 2e9, HostId("b"): 4e9, OBJECTS: 1e8}
    told = ModelSpeeds(model_id=ModelId("m"), peer_bytes_per_s=links)
    heard = DEFAULT_SPEEDS.updated_by(told, 64)
    assert (heard.other_bytes_per_s, heard.objects_bytes_per_s) == (3e9, 1e8)
    assert OBJECTS not in heard.peer_bytes_per_s


def test_a_queue_that_is_over_by_then_is_not_waited_for() -> None:
    queued = TurnWork(num_waiting_tokens=1000)
    waits = [cost_of(GUESSED, replace(queued, ahead_ms=ms)).queue_ms for ms in (0, 40, 200)]
    assert waits == [100, 60, 0]
