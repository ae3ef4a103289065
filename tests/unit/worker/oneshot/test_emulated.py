"""Emulated one-shot models keep their profile's time."""

import threading
import time

import numpy as np
import pytest

from services.worker.oneshot.emulated import EmulatedOneshot
from services.worker.oneshot.model import BatchStoppedError
from shared.errors import InvalidRequest
from shared.ids import JobId
from shared.wire.messages import JobInput, pack_ints
from shared.zoo import ZooModel, zoo_model


def job(*tokens: int) -> JobInput:
    return JobInput(job_id=JobId("j"), tokens=pack_ints(tokens))


def test_the_card_is_the_profile() -> None:
    card = EmulatedOneshot(zoo_model("1080ti", "ResNet50"), "folder").card
    assert (card.model_id, card.slo_ms, card.emulated) == ("ResNet50", 27.0, True)
    [variant] = card.variants
    assert variant.variant == 0
    assert variant.batch_ns == [round((2.05 * b + 5.378) * 1e6) for b in range(1, 11)]
    assert len(EmulatedOneshot(zoo_model("1080ti", "BERT"), "f", 3).card.variants[0].batch_ns) == 3


def test_a_batch_takes_its_time_and_not_less() -> None:
    model = EmulatedOneshot(ZooModel("m", 2.0, 10.0, 100.0), "folder")
    inputs = [model.decode(job(n), 0) for n in range(5)]
    started_ns = time.monotonic_ns()
    values = model.run(inputs, 0, threading.Event())
    assert time.monotonic_ns() - started_ns >= 20_000_000
    assert values.shape == (5, 8)
    assert np.all(np.abs(values) <= 1.0)


def test_values_depend_on_the_input_alone() -> None:
    model = EmulatedOneshot(ZooModel("m", 0.001, 0.0, 100.0), "folder")
    first = model.run([model.decode(job(n), 0) for n in (1, 2, 3)], 0, threading.Event())
    again = model.run([model.decode(job(n), 0) for n in (3, 1)], 0, threading.Event())
    np.testing.assert_array_equal(first[[2, 0]], again)
    assert len(np.unique(first, axis=0)) == 3


def test_it_stops_when_asked() -> None:
    model = EmulatedOneshot(ZooModel("m", 1.0, 60_000.0, 100_000.0), "folder")
    stop = threading.Event()
    stop.set()
    with pytest.raises(BatchStoppedError):
        model.run([model.decode(job(1), 0)], 0, stop)


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        EmulatedOneshot(ZooModel("m", 1.0, 1.0, 10.0), "folder").decode(job(), 0)
