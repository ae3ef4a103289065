"""What `bench emulated` and `bench oneshot` make of what they saw, and their driver's two files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.bench import oneshot
from loadtest.bench.emulated import Run, _parser, make_scenario, summarise
from loadtest.fuzz.plain_http import request_bytes
from loadtest.http_load import Answers
from loadtest.jobs.order import (
    ANSWERED,
    DROPPED,
    UNANSWERED,
    Model,
    Order,
    Outcome,
    read_order,
    read_outcome,
)
from loadtest.simulator.arrivals import Arrivals
from loadtest.simulator.models import linear_model
from services.scheduler.core.jobs import JobLimits
from shared.errors import InvalidRequest
from shared.ids import BatchId, ModelId, WorkerId
from shared.messages import BatchDone, OneshotCard, OneshotVariant

MS = 1_000_000
S = 1000 * MS


def make_order(at_ms: list[int], model: list[int] | None = None) -> Order:
    index = np.array(model or [0] * len(at_ms), np.int64)
    return Order(
        nats_url="nats://nowhere",
        models=[
            Model(name="a", slo_ns=100 * MS, fastest_ns=10 * MS),
            Model(name="b", slo_ns=50 * MS, fastest_ns=10 * MS),
        ],
        arrivals=Arrivals(np.array(at_ms, np.int64) * MS, index, 3 * S),
        counted_from_ns=S,
        pids={"scheduler": 1},
    )


def make_outcome(end: list[int], took_ms: list[int], **cpu_s: float) -> Outcome:
    return Outcome(
        began_at_ns=10 * S,
        end=np.array(end, np.uint8),
        took_ns=np.array(took_ms, np.int64) * MS,
        late_ns=np.zeros(len(end), np.int64),
        cpu_s=cpu_s,
    )


def make_done(size: int, run_ms: int) -> BatchDone:
    return BatchDone(
        worker_id=WorkerId("w"),
        batch_id=BatchId("x"),
        fence=1,
        model_id=ModelId("a"),
        variant=0,
        size=size,
        run_ns=run_ms * MS,
    )


def summary(end: list[int], took_ms: list[int], at_ms: list[int], **cpu_s: float) -> Run:
    dones = [
        (10 * S + 500 * MS, make_done(9, 500)),  # in the cold start
        (12 * S, make_done(1, 100)),
        (12 * S, make_done(3, 300)),
        (12 * S, make_done(0, 0)),  # every client had hung up
        (13 * S, make_done(9, 500)),  # after the last arrival
    ]
    return summarise(make_outcome(end, took_ms, **cpu_s), dones, make_order(at_ms), num_gpus=2)


def test_counts_by_the_drivers_clock_after_the_cold_start() -> None:
    found = summary(
        [DROPPED, ANSWERED, ANSWERED, DROPPED, UNANSWERED],
        [1, 100, 101, 20, 350],
        [999, 1000, 1500, 2000, 2500],
    )
    assert (found.num_late, found.num_dropped, found.num_unanswered) == (1, 1, 1)
    assert found.good_rps == 0.5
    assert found.bad_rate == 0.75


def test_takes_batches_from_the_ends_that_workers_told() -> None:
    found = summary([ANSWERED], [50], [1000])
    assert found.batch_p50 == 3.0  # three of the four jobs ran in that batch
    assert found.gpu_busy == pytest.approx(0.4 / 2 / 2)


def test_puts_the_workers_processor_time_together() -> None:
    found = summary([ANSWERED], [50], [1000], **{"worker-0": 1.0, "worker-1": 0.5, "nats": 0.25})
    assert found.cores == {"workers": 0.75, "nats": 0.125}


def test_the_worst_model_decides_whether_a_load_is_served() -> None:
    order = make_order([1000, 1000, 1000, 1000], [0, 0, 0, 1])
    outcome = make_outcome([ANSWERED] * 4, [60] * 4)
    found = summarise(outcome, [], order, num_gpus=1)
    assert (found.bad_rate, found.worst_bad_rate) == (0.25, 1.0)


def test_simulates_what_the_scheduler_reckons_with() -> None:
    args = _parser().parse_args(["--gpus", "3", "--policy", "eager", "--seconds", "5"])
    limits = JobLimits(ctrl_ns=3 * MS, data_ns=7, return_ns=2 * MS, slack_ns=MS)
    scenario = make_scenario(args, [linear_model("m", 5, 20, 100)], limits)
    assert (scenario.delays.ctrl_ns, scenario.delays.data_ns) == (3 * MS, 7)
    assert scenario.delays.slack_ns == MS
    assert scenario.models[0].slo_ms == pytest.approx(97.0)  # 1 ms to gather, 2 to return
    assert (scenario.num_gpus, scenario.policy, scenario.seconds) == (3, "eager", 5.0)


def test_a_run_without_counted_time_is_refused() -> None:
    args = _parser().parse_args(["--seconds", "1"])
    with pytest.raises(InvalidRequest, match="not counted"):
        make_scenario(args, [linear_model("m", 5, 20, 100)], JobLimits())


def test_orders_and_outcomes_survive_their_files(tmp_path: Path) -> None:
    order = make_order([0, 5], [1, 0])
    order.write(tmp_path / "order")
    read = read_order(tmp_path / "order")
    assert (read.models, read.pids, read.num_shards) == (order.models, order.pids, 1)
    assert read.arrivals.at_ns.tolist() == [0, 5 * MS]
    assert read.arrivals.model.tolist() == [1, 0]
    assert read.arrivals.end_ns == 3 * S
    outcome = make_outcome([ANSWERED, DROPPED], [5, 6], nats=1.5)
    outcome.write(tmp_path / "outcome")
    again = read_outcome(tmp_path / "outcome")
    assert again.end.tolist() == [ANSWERED, DROPPED]
    assert again.took_ns.tolist() == [5 * MS, 6 * MS]
    assert (again.began_at_ns, again.cpu_s) == (10 * S, {"nats": 1.5})


def make_card(*batch_ms: list[float]) -> OneshotCard:
    fields: dict[str, Any] = {"task": "embed", "modality": "text", "source": ""}
    return OneshotCard(
        model_id=ModelId("m"),
        fingerprint="f",
        slo_ms=100,
        num_values=1,
        variants=[
            OneshotVariant(variant=32 * n, batch_ns=[int(ms * 1e6) for ms in times])
            for n, times in enumerate(batch_ms, start=1)
        ],
        **fields,
    )


def test_capacity_is_of_the_largest_batch_of_which_two_fit_into_the_target() -> None:
    card = make_card([20.0, 30.0, 40.0], [20.0, 50.0])
    assert oneshot.capacity_rps(card, [20], slo_ms=60) == pytest.approx(2 / 30e-3)
    assert oneshot.capacity_rps(card, [20, 40], slo_ms=60) == pytest.approx(1e3 / 17.5)
    with pytest.raises(InvalidRequest, match="--slo-ms 39"):
        oneshot.capacity_rps(card, [20], slo_ms=39)


def test_refusals_are_no_misses_and_missing_answers_are() -> None:
    answers = Answers(
        [0.100, 0.151, 0.005, 0.400, 0.002],
        [200, 200, 503, 503, 429],
        {2: "deadline_unreachable", 3: "deadline_exceeded", 4: "too_many_requests"},
    )
    found = oneshot.summarise(answers, slo_ms=150, seconds=1)
    assert (found["goodput_rps"], found["refused"], found["errors"]) == (1.0, 1, 1)
    assert found["refused_after_p50_ms"] == 5.0
    assert found["client_miss_share"] == pytest.approx(2 / 3, abs=1e-4)


def test_a_request_carries_its_target_and_length() -> None:
    text = request_bytes("POST", "/v1/embeddings", 8080, b"{}", b"X-SLO-Ms: 150").decode()
    assert "\r\nContent-Length: 2\r\n" in text
    assert text.endswith("\r\nX-SLO-Ms: 150\r\n\r\n{}")
