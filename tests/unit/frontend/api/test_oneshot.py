"""Requests to one-shot models: bodies, which models there are, and what is made of results."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.frontend.api.bodies.fields import parse
from services.frontend.api.bodies.oneshot import (
    ClassifyBody,
    EmbeddingBody,
    RerankBody,
    documents_of,
    texts_of,
    urls_of,
)
from services.frontend.api.oneshot.requests import unpack_values
from services.frontend.api.oneshot.vectors import shortened
from services.frontend.core.models.fleet import Fleet, LoadProcessor
from services.frontend.http.request import slo_ms, slo_ttft_ms
from shared.errors import InvalidRequest, SymphonyError
from shared.ids import HostId, ModelId, WorkerId, shard_of
from shared.wire.messages import OneshotCard, OneshotVariant, WorkerReport, encode

SECOND = 1_000_000_000
CARD = OneshotCard(
    model_id=ModelId("m"), task="embed", modality="text", source="/m", fingerprint="f", slo_ms=50,
    variants=[OneshotVariant(variant=8, batch_ns=[5, 6])], num_values=4,
)  # fmt: skip
REPORT = WorkerReport(
    worker_id=WorkerId("w"), incarnation="a", seq=1, host_id=HostId("h"), state="ready",
    oneshot=[CARD],
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"), ([], "input"), ("", "input"), ({}, "input"), (["a", ""], "input[1]"),
        (["a", 3], "input[1]"), ([[]], "input[0]"), ([[1, -1]], "input[0]"), ([True], "input[0]"),
        (["a"] * 5, "input"), ([[2**31]], "input[0]"),
    ],
)  # fmt: skip
def test_texts_that_are_none(given: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        texts_of(given, 4)
    assert caught.value.param == param


def test_texts() -> None:
    assert texts_of("a", 4) == ["a"]
    assert texts_of(["a", [1]], 4) == ["a", [1]]
    assert texts_of([1, 2, 3, 4, 5], 4) == [[1, 2, 3, 4, 5]]


def test_images() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:x"}}
    assert urls_of(part, 4) == ["data:x"]
    assert urls_of([part, {"type": "image_url", "image_url": "y"}], 4) == ["data:x", "y"]
    wrongs: list[Any] = ["data:x", [], ["x"], [{"type": "text"}], [part] * 5, [{}], None]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest):
            urls_of(wrong, 4)


def rerank_body(**fields: Any) -> RerankBody:
    return parse(RerankBody, encode({"model": "m", "query": "q", "documents": ["a"]} | fields))


def test_documents() -> None:
    assert documents_of(rerank_body(documents=["a", {"text": "b", "id": 7}]), 4) == ["a", "b"]
    wrongs: list[Any] = [[""], [{"text": ""}], [{}], [3], ["a"] * 5]
    for wrong in wrongs:
        with pytest.raises(InvalidRequest):
            documents_of(rerank_body(documents=wrong), 4)


def test_wrong_fields_are_named() -> None:
    for kind, fields, param in (
        (RerankBody, {"query": "", "documents": ["a"]}, "query"),
        (RerankBody, {"query": "a", "documents": []}, "documents"),
        (RerankBody, {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        (EmbeddingBody, {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        (EmbeddingBody, {"input": "a", "dimensions": 0}, "dimensions"),
        (EmbeddingBody, {}, "input"),
        (ClassifyBody, {"input": "a", "slo_ms": 0}, "slo_ms"),
        (ClassifyBody, {"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            parse(kind, encode({"model": "m", **fields}))
        assert caught.value.param == param


def test_targets() -> None:
    assert slo_ms(None) is None and slo_ms("0.5") == 0.5
    for wrong in ("", "0", "-1", "nan", "inf", "soon", "3600001", "1.4e308"):
        with pytest.raises(InvalidRequest) as caught:
            slo_ms(wrong)
        assert caught.value.param == "X-SLO-Ms"
        with pytest.raises(InvalidRequest) as caught:
            slo_ttft_ms(wrong)
        assert caught.value.param == "X-SLO-TTFT-Ms"


def test_results_are_checked() -> None:
    packed = base64.b64encode(np.array([1, 2], "<f4").tobytes()).decode()
    assert unpack_values(packed, 2).tolist() == [1, 2]
    for wrong in (packed[:-1], packed + "AAAA", "", "\u00e4"):
        with pytest.raises(SymphonyError):
            unpack_values(wrong, 2)


def test_a_shortened_embedding_has_length_one() -> None:
    made = shortened(np.array([3, 4, 12], np.float32), 2)
    assert np.allclose(made, [0.6, 0.8]) and made.dtype == np.float32
    assert shortened(np.zeros(3, np.float32), 2).tolist() == [0, 0]


def test_a_model_is_as_fast_as_its_fastest_worker() -> None:
    fleet = Fleet()
    assert fleet.on_report(REPORT, 0) == [LoadProcessor(CARD)]
    faster = replace(CARD, variants=[OneshotVariant(variant=8, batch_ns=[3])])
    other = replace(REPORT, worker_id=WorkerId("v"), oneshot=[faster])
    assert fleet.on_report(other, SECOND) == []
    assert fleet.oneshot_card(ModelId("m"), SECOND) == faster
    assert fleet.oneshot_models(SECOND) == [faster]
    fleet.on_report(replace(other, seq=2, state="draining"), SECOND)
    assert fleet.oneshot_card(ModelId("m"), SECOND) == CARD
    assert fleet.oneshot_card(ModelId("m"), 4 * SECOND) is None
    fleet.forget_dead(4 * SECOND)
    assert fleet.oneshot_models(0) == []
    assert fleet.oneshot_remembered(ModelId("m")) == faster


def test_a_model_without_times_is_not_served() -> None:
    fleet = Fleet()
    for variants in ([], [OneshotVariant(variant=8, batch_ns=[])]):
        card = replace(CARD, variants=variants)
        fleet.on_report(replace(REPORT, incarnation=str(variants), oneshot=[card]), 0)
        assert fleet.oneshot_models(0) == []


def test_shards_are_the_same_everywhere() -> None:
    assert [shard_of(ModelId(f"model-{at}"), 4) for at in range(6)] == [3, 1, 3, 1, 2, 0]
    assert {shard_of(ModelId(f"model-{at}"), 3) for at in range(50)} == {0, 1, 2}
