"""How many workers a language model lacks or does not need."""

import pytest

from services.scheduler.core import PublishAdvice
from services.scheduler.core.turns.scaling import INTERVAL_NS
from shared.ids import ModelId, TurnId
from shared.wire.messages import AutoscaleAdvice, ModelRoom
from shared.wire.shards import Share
from tests.unit.scheduler.turns.driver import Driver, only

SEATS = 8


def room(num_turns: int, free: int = 1000, model: str = "m") -> ModelRoom:
    return ModelRoom(
        model_id=ModelId(model), num_turns=num_turns, num_blocks=1000, num_blocks_free=free
    )


def advice_after(
    d: Driver, *loads: tuple[int, int], slo_tpot_ms: float | None = None, for_s: int = 60
) -> AutoscaleAdvice:
    """Workers report turns and free blocks for so long: the last advice."""
    told: list[AutoscaleAdvice] = []
    for number, (num_turns, _) in enumerate(loads):
        for turn in range(num_turns):
            d.submit(f"{number}-{turn}", slo_tpot_ms=slo_tpot_ms)
    for _ in range(for_s * 2):
        for number, (num_turns, free) in enumerate(loads):
            refs = [(f"{number}-{turn}", 1) for turn in range(num_turns)]
            d.report(f"w{number}", *refs, seats=SEATS, room=room(num_turns, free))
        told += [each.advice for each in only(PublishAdvice, d.wake(INTERVAL_NS // 2))]
    assert told and all(each.model_id == "m" for each in told)
    return told[-1]


def test_workers_without_work_are_offered_back_but_the_last() -> None:
    advice = advice_after(Driver(policy="cost"), (0, 1000), (0, 1000), (0, 1000))
    assert (advice.num_workers, advice.add, advice.remove) == (3, 0, 2)
    assert advice.idle_share == pytest.approx(1.0)
    advice = advice_after(Driver(policy="cost"), (0, 1000))
    assert (advice.add, advice.remove) == (0, 0)


@pytest.mark.parametrize("load", [(4, 1000), (1, 500)])
def test_seats_and_blocks_that_are_taken_keep_workers(load: tuple[int, int]) -> None:
    advice = advice_after(Driver(policy="cost"), load, load, load, load)
    assert advice.idle_share == pytest.approx(0.5, abs=0.02)
    assert (advice.add, advice.remove) == (0, 1)  # three have 67% of their places taken
    full = (6, 1000) if load[0] > 1 else (1, 250)
    advice = advice_after(Driver(policy="cost"), *[full] * 8)
    assert (advice.add, advice.remove) == (0, 0)


def test_workers_are_missing_while_turns_wait_for_room() -> None:
    d = Driver(policy="cost")
    d.report("w0", seats=SEATS, room=room(0))
    d.report("w1", seats=SEATS, room=room(0))
    for number in range(18):
        d.submit(f"x{number}")
    for number in range(18):
        d.submit(f"waits{number}", max_tokens=10)
    assert d.core.status(d.now_ns).num_turns_waiting == 18
    refs = {f"w{at}": [(f"x{n}", 1) for n in range(18) if n % 2 == at] for at in (0, 1)}
    told: list[AutoscaleAdvice] = []
    for _ in range(50):
        for worker, held in refs.items():
            d.report(worker, *held, seats=SEATS, room=room(9))
        told += [each.advice for each in only(PublishAdvice, d.wake(INTERVAL_NS // 2))]
    assert told[-1].add == 2, "as many turns wait as run"
    assert told[-1].bad_rate == pytest.approx(0.5, abs=0.05)


def test_workers_are_missing_while_targets_are_missed() -> None:
    for target_ms, add in ((9.0, True), (50.0, False)):  # a step takes 10 ms
        advice = advice_after(Driver(policy="cost"), (4, 800), slo_tpot_ms=target_ms)
        assert bool(advice.add) is add
        assert advice.bad_rate == (1.0 if add else 0.0)


def test_a_model_whose_workers_have_left_is_no_longer_advised_about() -> None:
    d = Driver(policy="cost")
    advice_after(d, (0, 1000))
    effects = d.wake(70 * INTERVAL_NS)
    told = [each.advice for each in only(PublishAdvice, effects)]
    assert told[-1].num_workers == told[-1].add == 0
    assert not only(PublishAdvice, d.wake(5 * INTERVAL_NS))


def test_the_first_worker_is_asked_for_by_turns_that_wait_for_one() -> None:
    d = Driver(policy="cost")
    told: list[AutoscaleAdvice] = []
    for number in range(14):
        d.submit(f"t{number}")
        told += [each.advice for each in only(PublishAdvice, d.wake(INTERVAL_NS))]
    assert told[-1].num_workers == 0 and told[-1].add >= 1


def test_turns_that_wait_at_one_of_several_schedulers_stand_for_those_of_all() -> None:
    """One turn runs; of two schedulers, one waits at this one: probably another at the other."""
    share = Share(0, 2)
    mine = [turn for turn in (f"t{number}" for number in range(99)) if share.has_turn(TurnId(turn))]
    d = Driver(policy="cost", share=share)
    told: list[AutoscaleAdvice] = []
    for number in range(50):
        d.report("w0", (mine[0], 1), seats=SEATS, room=room(1, free=0))
        if not number:
            d.submit(mine[1])
        told += [each.advice for each in only(PublishAdvice, d.wake(INTERVAL_NS // 2))]
    assert d.core.status(d.now_ns).num_turns_waiting == 1
    assert told[-1].bad_rate == pytest.approx(2 / 3, abs=0.01)


def test_one_of_several_schedulers_advises() -> None:
    for index, advises in ((0, True), (1, False)):
        d = Driver(policy="cost", share=Share(index, 2))
        d.report("w0", seats=SEATS, room=room(0))
        assert bool(only(PublishAdvice, d.wake(2 * INTERVAL_NS))) is advises
