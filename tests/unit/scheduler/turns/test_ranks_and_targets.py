"""Turns go by the ranks of the adapters beside them, and by targets (CaraServe, section 5)."""

from dataclasses import replace
from typing import Any

import pytest

from services.scheduler.core.fleet.mix import Adapter, Mix
from shared.ids import ModelId
from shared.wire.messages import ModelSpeeds, StepModelFit
from tests.unit.scheduler.turns.driver import Driver, adapter_of, starts

M = ModelId("m")
# Both lines of CaraServe's section 2.3 (Figure 5): 24 requests of rank 32 on the first instance,
# 16 of rank 64 on the second, and what each kernel's step takes there.
LATENCIES_MS = {"padded": (34.8, 35.8), "unpadded": (35.3, 35.9)}
UNITS = {"padded": (24 * 32, 16 * 64), "unpadded": (24 * 32, 16 * 64)}
SLO_MS = 36.0


def line(name: str) -> tuple[float, float]:
    """Of milliseconds by units: base and slope."""
    (first, second), (few, many) = LATENCIES_MS[name], UNITS[name]
    slope = (second - first) / (many - few)
    return first - slope * few, slope


def fitted(name: str, r2: float = 0.96) -> StepModelFit:
    base_ms, unit_ms = line(name)
    return StepModelFit(
        model_id=M, name=name, base_ns=base_ms * 1e6, row_ns=0.0, unit_ns=unit_ms * 1e6, r2=r2
    )


@pytest.mark.parametrize(("kernel", "chosen"), [("padded", "w2"), ("unpadded", "w1")])
def test_the_paper_s_example_of_two_kernels(kernel: str, chosen: str) -> None:
    """Figure 5: the one instance on which 36 ms hold for everybody."""
    d = Driver(policy="cost")
    base_ms, _ = line(kernel)
    speeds = ModelSpeeds(model_id=M, token_ms=0.01, step_ms=base_ms, row_ms=0.0001)
    for name in ("w1", "w2"):
        d.report(name, speeds=speeds, lora=fitted(kernel))
    for worker in d.workers():
        rank, num = (32, 24) if worker.worker_id == "w1" else (64, 16)
        mix = worker.mixes[M] = Mix()
        for number in range(num):
            mix.add(Adapter(f"{rank}-{number}", rank, 0), SLO_MS)
    new = adapter_of("c", 64)
    ((worker_id, *_),) = starts(d.submit("new", adapter=new, slo_tpot_ms=SLO_MS))
    assert worker_id == chosen


def two_workers(policy: str = "cost") -> Driver:
    d = Driver(policy=policy)
    speeds = ModelSpeeds(model_id=M, token_ms=0.1, step_ms=10.0, row_ms=0.5)
    d.report("w1", speeds=speeds)
    d.report("w2", speeds=speeds)
    return d


def where(d: Driver, turn: str, **asked: Any) -> str:
    ((worker_id, *_),) = starts(d.submit(turn, **asked))
    return worker_id


def test_a_turn_goes_where_it_breaks_no_target_though_that_takes_longer() -> None:
    d = two_workers()
    first = where(d, "strict", slo_tpot_ms=10.9)
    other = {"w1": "w2", "w2": "w1"}[first]
    for number in range(4):  # one more row there would make its steps 11 ms
        assert where(d, f"t{number}") == other


def test_a_turn_with_a_target_goes_where_it_is_met() -> None:
    """To the slower worker, since the other one's queue is shorter but its steps are too long."""
    d = Driver(policy="cost")
    d.report("w1", speeds=ModelSpeeds(model_id=M, token_ms=0.1, step_ms=20.0, row_ms=0.5))
    d.report("w2", speeds=ModelSpeeds(model_id=M, token_ms=0.1, step_ms=10.0, row_ms=0.5),
             waiting_tokens=60_000)  # fmt: skip
    assert where(d, "patient") == "w1"
    assert where(d, "strict", slo_tpot_ms=15.0) == "w2"
    assert where(d, "hasty", slo_ttft_ms=500.0, slo_tpot_ms=30.0) == "w1"


def test_alike_ranks_come_together_where_steps_take_as_long_as_the_largest() -> None:
    d = two_workers()
    for name in ("w1", "w2"):
        d.report(name, lora=fitted("padded"))
    assert where(d, "large", adapter=adapter_of("l", 64)) == "w1"
    small = [where(d, f"s{number}", adapter=adapter_of("s", 8)) for number in range(2)]
    assert small == ["w2"] * 2, "beside the large one each would take as long as that"
    assert where(d, "plain") == "w1"


def test_one_adapter_is_read_once_where_steps_take_as_long_as_its_bytes() -> None:
    d = two_workers()
    a, b = (replace(adapter_of(name, 64), image_bytes=500_000_000) for name in "ab")
    assert (where(d, "a0", adapter=a), where(d, "b0", adapter=b)) == ("w1", "w2")
    d.report("w1", adapters="ab")  # so that neither has to be loaded
    d.report("w2", adapters="ab")
    for worker in d.workers():
        worker.turns.clear()  # only what is read counts
    assert where(d, "b1", adapter=b) == "w2"
    assert where(d, "a1", adapter=a) == "w1"


def test_fits_that_say_nothing_are_not_used() -> None:
    d = two_workers()
    d.report("w1", lora=fitted("padded", r2=0.1))
    d.report("w2", lora=replace(fitted("padded"), unit_ns=float("nan")))
    d.report("w1", lora=replace(fitted("padded"), name="__class__"))
    assert not any(worker.lora_steps for worker in d.workers())


def test_what_is_counted_of_turns_is_nothing_once_they_are_over() -> None:
    d = two_workers()
    d.report("w1", ("old", 1), running=adapter_of("a"))
    d.submit("old", attempt=1, slo_tpot_ms=20.0, adapter=adapter_of("a"))
    for number in range(4):
        d.submit(f"t{number}", adapter=adapter_of("b"), slo_tpot_ms=30.0)
    for worker in ("w1", "w2"):
        for turn in ("old", "t0", "t1", "t2", "t3"):
            d.end(worker, turn)
    assert not any(worker.mixes for worker in d.workers())


@pytest.mark.parametrize(("load_ms", "worker"), [(5.0, "w2"), (5_000.0, "w1")])
def test_what_loading_an_adapter_has_taken_decides_whether_it_is_worth_it(
    load_ms: float, worker: str
) -> None:
    """`w1` has the adapter and is busier."""
    d = Driver(policy="cost")
    speeds = ModelSpeeds(
        model_id=M, token_ms=0.1, step_ms=10.0, row_ms=0.5, adapter_load_ms=load_ms
    )
    d.report("w1", *[(f"o{number}", 1) for number in range(4)], speeds=speeds, adapters="a")
    d.report("w2", speeds=speeds)
    assert where(d, "t", adapter=adapter_of("a")) == worker


def test_a_load_that_is_over_before_the_turn_comes_costs_nothing() -> None:
    """`w1` has the adapter and is busier."""
    for arrives_s, worker in ((1, "w1"), (60, "w2")):
        d = Driver(policy="cost")
        speeds = ModelSpeeds(
            model_id=M, token_ms=0.1, step_ms=10.0, row_ms=0.5, adapter_load_ms=5_000.0
        )
        d.report("w1", *[(f"o{number}", 1) for number in range(4)], speeds=speeds, adapters="a")
        d.report("w2", speeds=speeds)
        placed, _ = d.expect("s", adapter=adapter_of("a"), arrives_s=arrives_s, expires_s=90)
        assert placed.worker_id == worker


@pytest.mark.parametrize(
    ("image_bytes", "bytes_per_s", "num_others", "worker"),
    [(500_000_000, 1e11, 4, "w1"), (500_000_000, 1e8, 4, "w2"), (-(10**12), 1e8, 0, "w2")],
)
def test_an_adapter_of_which_no_load_was_measured_is_judged_by_its_size(
    image_bytes: int, bytes_per_s: float, num_others: int, worker: str
) -> None:
    """`w2` has the adapter and these turns. A size below 0 is no reason to load it."""
    d = Driver(policy="cost")
    speeds = ModelSpeeds(
        model_id=M, token_ms=0.1, step_ms=10.0, row_ms=0.5, load_bytes_per_s=bytes_per_s
    )
    others = [(f"o{number}", 1) for number in range(num_others)]
    d.report("w1", speeds=speeds)
    d.report("w2", *others, speeds=speeds, adapters="a")
    adapter = replace(adapter_of("a"), image_bytes=image_bytes)
    assert where(d, "t", adapter=adapter) == worker


@pytest.mark.parametrize("load_ms", [1e9, -1e9, float("nan")])
def test_a_load_time_that_cannot_be_is_ignored(load_ms: float) -> None:
    d = Driver(policy="cost")
    for reported_ms in (20.0, load_ms):
        speeds = ModelSpeeds(
            model_id=M, token_ms=0.1, step_ms=10.0, row_ms=0.5, adapter_load_ms=reported_ms
        )
        d.report("w1", speeds=speeds)
    assert d.workers()[0].speeds[M].adapter_load_ms == 20.0
