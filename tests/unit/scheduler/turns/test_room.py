"""Turns go where there is a seat and pages for them, and wait in the scheduler where there is none:
in order, with an end, refused where that is too late.
"""

import pytest

from services.scheduler.core import FailTurn, Limits
from services.scheduler.core.fleet.lengths import ReplyLengths
from services.scheduler.core.fleet.speeds import DEFAULT_SPEEDS
from shared.ids import ModelId, TurnId, WorkerId
from shared.wire.messages import ModelRoom, PlacedTurn, TurnsPlaced
from shared.wire.shards import Share
from tests.unit.scheduler.turns.driver import SECOND, Driver, adapter_of, failures, only, starts

M = ModelId("m")
SEATS = 8
HELD_MAX = SEATS + 1  # and one that may wait there


def room(num_turns: int = 0, free: int = 1000, of: int = 1000) -> ModelRoom:
    return ModelRoom(model_id=M, num_turns=num_turns, num_blocks=of, num_blocks_free=free)


def full(d: Driver, worker: str = "w1", num: int = HELD_MAX) -> list[str]:
    """A worker on which so many turns run; returns their names."""
    d.report(worker, seats=SEATS, room=room())
    names = [f"{worker}-{number}" for number in range(num)]
    for name in names:
        assert starts(d.submit(name)), "there is room"
    return names


@pytest.mark.parametrize("policy", ["cost", "balance"])
def test_a_worker_without_free_pages_gets_no_turn_that_another_has_room_for(policy: str) -> None:
    d = Driver(policy=policy)
    d.report("w1", *[(f"o{number}", 1) for number in range(5)], room=room(5, 12_000, 20_000))
    d.report("w2", ("p", 1), room=room(1, 0, 20_000))
    assert [worker for worker, *_ in starts(d.submit("t"))] == ["w1"]


@pytest.mark.parametrize("policy", ["cost", "balance"])
def test_a_worker_without_free_seats_gets_no_turn_that_another_has_room_for(policy: str) -> None:
    d = Driver(policy=policy)
    running = [(f"o{number}", 1) for number in range(72)]
    d.report("w1", *running, seats=64, room=room(72))
    d.report("w2", *[(f"p{number}", 1) for number in range(60)], seats=64, room=room(60),
             waiting_tokens=100_000)  # fmt: skip
    assert [worker for worker, *_ in starts(d.submit("t"))] == ["w2"]


def test_what_was_sent_since_the_report_takes_room() -> None:
    d = Driver()
    d.report("w1", room=room(free=10, of=10))
    assert starts(d.submit("t1", num_tokens=300, max_tokens=20))  # 5 blocks
    assert starts(d.submit("t2", num_tokens=300, max_tokens=20))
    assert not starts(d.submit("t3", num_tokens=300, max_tokens=20)), "the pool is promised"
    d.report("w1", ("t1", 1), room=room(1, free=5, of=10))
    assert not starts(d.wake()), "the report does not list what was sent before"
    d.report("w1", ("t1", 1), ("t2", 1), room=room(2, free=0, of=10))
    assert not starts(d.wake())
    d.end("w1", "t1")
    assert [turn for _, turn, *_ in starts(d.wake())] == ["t3"]


def test_running_turns_have_room_for_what_they_still_have_to_say() -> None:
    d = Driver()
    d.report("w1", room=room(free=10, of=10))
    d.submit("t1", num_tokens=64, max_tokens=512)  # with its reply, 9 blocks of 10
    d.report("w1", ("t1", 1), generated=1, room=room(1, free=8, of=10))
    lengths = ReplyLengths()
    assert lengths.remaining(M, 1, 512) > 190, "none ended: a guess"
    assert not starts(d.submit("t2", num_tokens=6 * 64, max_tokens=1))
    assert not starts(d.submit("t3", num_tokens=64, max_tokens=1)), "not before t2"


def test_a_turn_that_is_larger_than_a_pool_is_for_an_empty_worker_to_refuse() -> None:
    d = Driver()
    d.report("w1", room=room(free=10, of=10))
    assert starts(d.submit("t1", num_tokens=6400))


def test_what_fits_in_no_pool_is_sent_to_be_refused_and_holds_nobody_up() -> None:
    large = adapter_of("a", image_bytes=1 << 40)
    for asked in ({"num_tokens": 20 * 64}, {"adapter": large}):
        d = Driver()
        d.report("w1", ("x", 1), room=room(1, free=2, of=10))
        assert starts(d.submit("t1", **asked)), "it would wait for ever"
        d.report("w1", ("x", 1), room=room(1, free=2, of=10))
        d.report("w2", ("y", 1), room=room(1, free=0, of=1 << 30))
        assert not starts(d.submit("t2", num_tokens=20 * 64)), "there is a pool that it fits in"


@pytest.mark.parametrize(("num_tokens", "waits"), [(639, True), (640, False)])
def test_what_fills_a_pool_without_its_first_token_is_sent_to_be_refused(
    num_tokens: int, waits: bool
) -> None:
    d = Driver()
    d.report("w1", ("x", 1), room=room(1, free=2, of=10))
    assert bool(starts(d.submit("t", num_tokens=num_tokens))) is not waits


@pytest.mark.parametrize(("num_tokens", "is_sent"), [(64, True), (256, False), (512, True)])
def test_an_adapter_that_is_there_takes_no_more_blocks_but_is_beside_the_prompt(
    num_tokens: int, is_sent: bool
) -> None:
    """One of 5 blocks: a prompt of 8 never has room beside it, and is sent to be refused."""
    d = Driver()
    d.report("w1", ("x", 1), adapters="a", room=room(1, free=4, of=10))
    adapter = adapter_of("a", image_bytes=5 * DEFAULT_SPEEDS.block_bytes)
    started = starts(d.submit("t", adapter=adapter, num_tokens=num_tokens, max_tokens=1))
    assert bool(started) is is_sent


def test_an_adapter_of_less_than_no_bytes_makes_no_room() -> None:
    d = Driver()
    d.report("w1", ("x", 1), room=room(1, free=2, of=10))
    adapter = adapter_of("a", image_bytes=-(1 << 40))
    assert not starts(d.submit("t", num_tokens=320, adapter=adapter))


def test_the_one_pool_that_is_large_enough_is_found_among_very_many() -> None:
    d = Driver(policy="cost")
    for number in range(40):
        d.report(f"w{number}", room=room(0, free=10, of=10))
    d.report("large", ("x", 1), room=room(1, free=100, of=100))
    for number in range(3):
        asked = d.submit(f"t{number}", num_tokens=20 * 64, max_tokens=1)
        assert [worker for worker, *_ in starts(asked)] == ["large"]


def test_a_turn_goes_to_no_pool_that_is_too_small_for_it() -> None:
    d = Driver()
    d.report("w1", room=room(0, free=10, of=10))
    d.report("w2", ("y", 1), room=room(1, free=100, of=100))
    assert [worker for worker, *_ in starts(d.submit("t", num_tokens=20 * 64))] == ["w2"]


def wait(d: Driver, half_seconds: int, state: str = "ready") -> list[str]:
    """A full worker reports that it is in this state; returns how turns fail meanwhile."""
    failed: list[str] = []
    running = [(f"o{number}", 1) for number in range(HELD_MAX)]
    for _ in range(half_seconds):
        effects = d.report("w1", *running, seats=SEATS, room=room(HELD_MAX), state=state)
        failed += [code for code, _ in failures(effects + d.wake(SECOND // 2))]
    return failed


@pytest.mark.parametrize(
    ("was_placed", "left_after"), [(False, 8), (False, 29), (False, 50), (True, 8), (True, 130)]
)
def test_only_time_without_a_worker_counts_as_waiting_for_one(
    left_after: int, *, was_placed: bool
) -> None:
    """Also of a turn that has waited for room for longer."""
    d = Driver()
    if was_placed:
        d.report("w1")
        assert starts(d.submit("t"))
    else:
        assert wait(d, 2, "loading") == []
        assert not starts(d.submit("t"))
    assert wait(d, left_after) == []
    assert d.core.status(d.now_ns).num_turns_waiting == 1
    assert wait(d, 29, "loading") == []
    assert wait(d, 120, "loading") == ["no_worker"], "the wait has an end"


def test_a_worker_that_comes_and_goes_keeps_no_new_turn_waiting_for_ever() -> None:
    d = Driver()
    wait(d, 1, "loading")
    d.submit("t")
    failed: list[str] = []
    for _ in range(14):
        failed += wait(d, 1) + wait(d, 8, "loading")
    assert len(failed) == 1


def test_turns_wait_in_order_of_priority_then_target_then_arrival() -> None:
    d = Driver()
    (first, *others) = full(d)
    d.submit("late")
    d.submit("soon", slo_ttft_ms=5_000)
    d.submit("urgent", priority=1)
    d.submit("later")
    assert d.core.status(d.now_ns).num_turns_waiting == 4
    order = []
    for name in (first, *others[:3]):
        d.end("w1", name)
        order += [turn for _, turn, *_ in starts(d.wake())]
    assert order == ["urgent", "soon", "late", "later"]


def test_a_large_turn_is_not_overtaken_for_ever() -> None:
    d = Driver()
    d.report("w1", room=room(free=10, of=10))
    d.submit("t1", num_tokens=300, max_tokens=20)
    d.submit("t2", num_tokens=180, max_tokens=1)
    assert not starts(d.submit("large", num_tokens=500, max_tokens=1))
    assert not starts(d.submit("small", num_tokens=60, max_tokens=1)), "it would have fitted"
    d.end("w1", "t2")
    assert not starts(d.wake()), "the large one has no room yet"
    d.end("w1", "t1")
    assert [turn for _, turn, *_ in starts(d.wake())] == ["large", "small"]


def test_a_turn_waits_no_longer_than_its_target_or_the_limit() -> None:
    limits = Limits(learning_ns=0)
    for target_ms, wait_s in ((None, 60.0), (2_000.0, 2.0), (1e12, 60.0), (float("nan"), 60.0)):
        d = Driver(limits)
        full(d)
        d.submit("t", slo_ttft_ms=target_ms)
        failed: list[FailTurn] = []
        at_ns = d.now_ns
        while not failed:
            d.report("w1", *[(f"w1-{n}", 1) for n in range(HELD_MAX)], seats=SEATS,
                     room=room(HELD_MAX))  # fmt: skip
            failed = only(FailTurn, d.wake(SECOND // 2))
        assert abs((d.now_ns - at_ns) / SECOND - wait_s) < 1, target_ms
        assert failed[0].failed.code == "overloaded" and failed[0].failed.http_status == 503
        assert "all workers of this model are busy" in failed[0].failed.message
        assert failed[0].failed.retry_after_s >= 1
        assert d.core.status(d.now_ns).num_turns_waiting == 0


def test_a_target_of_0_is_no_reason_to_refuse_where_there_is_room() -> None:
    d = Driver(policy="cost")
    d.report("w1", seats=SEATS, room=room())
    assert starts(d.submit("t", slo_ttft_ms=0.0, slo_tpot_ms=0.0))


def test_a_turn_that_would_come_too_late_is_refused_at_once() -> None:
    d = Driver()
    running = full(d)
    for number in range(30):
        d.submit(f"t{number}")
    for number in range(20):  # one turn a second
        d.wake(SECOND // 2)
        listed = [(name, 1) for name in running]
        d.report("w1", *listed, seats=SEATS, room=room(len(running)))
        d.end("w1", running.pop(0))
        d.wake(SECOND // 2)
        running.append(f"t{number}")
    effects = d.submit("hasty", slo_ttft_ms=500)
    assert failures(effects) == [("overloaded", 503)]
    (failed,) = only(FailTurn, effects)
    assert 5 < failed.failed.retry_after_s < 15, "ten wait, and one is admitted a second"
    assert not failures(d.submit("patient", slo_ttft_ms=30_000))


def lose_one_worker() -> tuple[Driver, set[str]]:
    """Of two full ones, while a turn waits; returns the lost turns."""
    d = Driver(Limits(learning_ns=0))
    full(d, "w1")
    lost = set(full(d, "w2"))
    d.submit("waits", slo_ttft_ms=20_000)
    d.report("w2", incarnation="b", seats=SEATS, room=room(HELD_MAX, free=0))
    return d, lost


def test_a_lost_turn_is_next() -> None:
    d, lost = lose_one_worker()
    d.end("w1", "w1-0")
    assert starts(d.wake())[0][1] in lost, "before one that has waited longer"


def test_a_lost_turn_is_never_refused() -> None:
    d, lost = lose_one_worker()
    for _ in range(140):
        d.report("w1", *[(f"w1-{n}", 1) for n in range(HELD_MAX)], seats=SEATS,
                 room=room(HELD_MAX))  # fmt: skip
        d.report("w2", incarnation="b", seats=SEATS, room=room(HELD_MAX, free=0))
        failed = {effect.failed.turn_id for effect in only(FailTurn, d.wake(SECOND // 2))}
        assert not failed & lost


def test_a_turn_does_not_go_back_at_once_to_the_worker_that_missed_it() -> None:
    d = Driver(Limits(learning_ns=0))
    full(d, "w1")
    d.report("w2", seats=SEATS, room=room())
    assert [worker for worker, *_ in starts(d.submit("t"))] == ["w2"]
    effects = []
    for _ in range(3):
        d.wake(SECOND // 2)
        effects += d.report("w1", *[(f"w1-{n}", 1) for n in range(HELD_MAX)], seats=SEATS,
                            room=room(HELD_MAX))  # fmt: skip
        effects += d.report("w2", seats=SEATS, room=room())
        if starts(effects):
            break
    assert not starts(effects), "the other one is full: it waits"


@pytest.mark.parametrize("is_reserved", [True, False])
def test_a_turn_that_its_frontend_sent_stays_where_it_waits(is_reserved: bool) -> None:
    d = Driver()
    d.report("w1", seats=SEATS, room=room())
    if is_reserved:
        d.expect("s")
    for number in range(HELD_MAX):
        d.submit(f"o{number}")
    assert [worker for worker, *_ in starts(d.submit("t", "s", sent_to="w1"))] == ["w1"]


def test_what_a_report_frees_is_used_at_once() -> None:
    d = Driver()
    d.report("w1", ("o", 1), room=room(1, free=0, of=10))
    assert not starts(d.submit("t", num_tokens=64, max_tokens=1))
    effects = d.report("w1", ("o", 1), room=room(1, free=10, of=10))
    assert [turn for _, turn, *_ in starts(effects + d.wake())] == ["t"]


def test_the_next_one_is_tried_when_the_first_gives_up() -> None:
    d = Driver()
    d.report("w1", ("o", 1), room=room(1, free=3, of=10))
    d.submit("large", num_tokens=500, max_tokens=1, slo_ttft_ms=100)
    assert not starts(d.submit("small", num_tokens=60, max_tokens=1))
    effects = d.wake(SECOND // 5)
    assert failures(effects) == [("overloaded", 503)]
    assert [turn for _, turn, *_ in starts(effects)] == ["small"]


def test_what_a_peer_has_sent_takes_room() -> None:
    shares = [Share(index, 2) for index in range(2)]
    turn = next(f"t{n}" for n in range(99) if shares[0].has_turn(TurnId(f"t{n}")))
    other = next(f"t{n}" for n in range(99) if shares[1].has_turn(TurnId(f"t{n}")))
    for num_blocks in (2, 9):
        d = Driver(share=shares[0])
        d.report("w1", ("o", 1), room=room(1, free=10, of=10))
        placed = PlacedTurn(
            turn_id=TurnId(other), worker_id=WorkerId("w1"), model_id=M, num_blocks=num_blocks
        )
        d.note(d.core.on_turns_placed(TurnsPlaced(shard=1, turns=[placed]), d.now_ns))
        assert bool(starts(d.submit(turn, num_tokens=100, max_tokens=1))) == (num_blocks == 2)


def test_a_reserved_place_is_kept_while_its_turn_waits() -> None:
    d = Driver()
    running = full(d)
    d.expect("s")
    assert not starts(d.submit("t", "s"))
    d.end("w1", running[0])
    assert starts(d.wake()) == [("w1", "t", 1, "reserved")]


def test_a_new_worker_takes_what_waits() -> None:
    d = Driver()
    full(d)
    for number in range(3):
        d.submit(f"t{number}")
    assert len(starts(d.report("w2", seats=SEATS, room=room()))) == 3


def test_how_long_replies_are_is_learnt() -> None:
    lengths = ReplyLengths()
    for _ in range(500):
        lengths.learn(M, 20)
        lengths.learn(M, 1000)
    assert 450 < lengths.remaining(M) < 560
    assert 840 < lengths.remaining(M, 127) < 890, "those that are longer than 20 have 1,000"
    assert lengths.remaining(M, 5000) >= 1 and lengths.remaining(M, 8, 8) == 0


def test_a_turn_that_waits_does_not_forget_which_worker_missed_it() -> None:
    d = Driver()
    d.report("w1", seats=SEATS, room=room())
    d.submit("t")
    d.report("w2", seats=SEATS, room=room(HELD_MAX))
    for _ in range(3):  # it receives nothing, and has other turns by now
        d.now_ns += SECOND
        d.report("w1", seats=SEATS, room=room(HELD_MAX))
        d.report("w2", seats=SEATS, room=room(HELD_MAX))
    assert d.core.status(d.now_ns).num_turns_waiting == 1
    d.report("w1", seats=SEATS, room=room(1))
    d.report("w2", seats=SEATS, room=room(1))
    assert [worker for worker, *_ in starts(d.wake())] == ["w2"]
