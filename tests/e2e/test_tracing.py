"""A request's way through a whole cluster, as a collector of traces is told."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
from prometheus_client.openmetrics import parser

from loadtest.deployment import wait_until
from tests.cluster import Cluster
from tests.e2e.collector import Collector, Told, collecting

MODEL = "zero"
REQUEST = "POST /v1/completions"
SENDER, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TEXT = "Tell me how the sea came to be salt, and leave out nothing that the miller said. " * 4


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    env = {"SYMPHONY_OTLP_ENDPOINT": collector.url, "SYMPHONY_TRUE_PAGES": "true"}
    with Cluster(
        tmp_path_factory.mktemp("tracing") / "data", "--emulate", MODEL, settings=env
    ) as running:
        yield running


parsed: Any = parser.text_string_to_metric_families  # which has no types


def say(cluster: Cluster, trace_id: str = "", flag: str = "01") -> httpx.Response:
    body = {"model": MODEL, "session_id": "s", "prompt": TEXT, "max_tokens": 20}
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-{flag}"} if trace_id else {}
    return httpx.post(f"{cluster.url}/v1/completions", json=body, headers=headers, timeout=60)


def trace_of(collector: Collector, trace_id: str, names: set[str]) -> dict[str, Told]:
    """By name, once those with these names have come."""

    def spans() -> dict[str, Told]:
        return {span.name: span for span in collector.of(trace_id)}

    wait_until(lambda: names <= spans().keys(), f"of {trace_id} come {names}")
    return spans()


def test_every_service_tells_its_part(cluster: Cluster, collector: Collector) -> None:
    assert say(cluster, SENDER).status_code == 200
    spans = trace_of(collector, SENDER, {REQUEST, "place", "attempt", "stage"})
    parents = {name: span.parent for name, span in spans.items()}
    ids = {name: span.span_id for name, span in spans.items()}
    assert parents == {
        REQUEST: PARENT,
        "prepare": ids[REQUEST],
        "turn": ids[REQUEST],
        "place": ids["turn"],
        "attempt": ids["turn"],
        "queue": ids["attempt"],
        "history": ids["queue"],
        "stage": ids["attempt"],
        "prefill": ids["attempt"],
        "decode": ids["attempt"],
    } | {name: of for name, of in parents.items() if name in ("prompt", "wait for layer")}
    services = {name: span.service.removeprefix("symphony-") for name, span in spans.items()}
    assert services["turn"] == "frontend" and services["place"] == "scheduler"
    assert services["attempt"] == "worker" and services["stage"] == "kvstore"
    asked = spans[REQUEST].attributes
    assert asked["http.response.status_code"] == 200 and asked["gen_ai.request.model"] == MODEL
    assert asked["gen_ai.usage.output_tokens"] == 20 and asked["gen_ai.conversation.id"] == "s"
    assert TEXT[:20] not in str(spans), "texts are in no trace"
    attempt = spans["attempt"]
    assert (
        attempt.attributes["symphony.worker_id"] == spans["place"].attributes["symphony.worker_id"]
    )
    for name in ("queue", "prefill", "decode"):
        assert attempt.began_ns <= spans[name].began_ns <= spans[name].ended_ns
        assert spans[name].ended_ns <= attempt.ended_ns
    assert spans[REQUEST].began_ns <= spans["turn"].began_ns <= spans["turn"].ended_ns
    again = SENDER.replace("0", "1")
    assert say(cluster, again).status_code == 200
    cached = trace_of(collector, again, {"turn"})["turn"].attributes
    assert cached["gen_ai.usage.cache_read.input_tokens"] >= 64


def test_a_hint_is_followed_to_the_pages_that_it_brings_up(
    cluster: Cluster, collector: Collector
) -> None:
    assert say(cluster).status_code == 200
    wait_until(lambda: cluster.look()["tiers"]["disk"]["blocks"] >= 4, "its history is below")
    pid = cluster.kill("worker-0")  # with what was in its pool
    cluster.wait_restarted("worker-0", pid)
    cluster.wait_healthy()
    hint, trace_id = "POST /v1/advisories", "5" * 32
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
    body = {"session_id": "s", "model": MODEL, "expected_arrival": 0}
    assert httpx.post(f"{cluster.url}/v1/advisories", json=body, headers=headers).status_code == 202
    trace_of(collector, trace_id, {hint, "reserve", "stage", "prefetch"})
    assert say(cluster).status_code == 200
    spans = trace_of(collector, trace_id, {hint, "advisory", "reserve", "stage", "prefetch"})
    advisory, prefetch = spans["advisory"], spans["prefetch"]
    assert advisory.parent == spans[hint].span_id
    below = {spans[name].parent for name in ("reserve", "stage", "prefetch")}
    assert below == {advisory.span_id}
    assert advisory.attributes["symphony.outcome"] == "used"
    assert prefetch.attributes["symphony.of"] == "history"
    assert prefetch.attributes["symphony.blocks"] == prefetch.attributes["symphony.blocks_here"] > 0
    workers = {each.attributes["symphony.worker_id"] for each in (advisory, prefetch)}
    assert workers == {spans["reserve"].attributes["symphony.worker_id"]}
    assert advisory.began_ns <= prefetch.began_ns <= prefetch.ended_ns <= advisory.ended_ns


def test_a_trace_is_named_by_an_exemplar(cluster: Cluster, collector: Collector) -> None:
    assert say(cluster).status_code == 200
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = httpx.get(f"{cluster.url}/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    named = {
        sample.exemplar.labels["trace_id"]
        for family in parsed(answer.text)
        if family.name == "symphony_time_to_first_token_seconds"
        for sample in family.samples
        if sample.exemplar
    }
    wait_until(
        lambda: named <= {span.trace_id for span in list(collector.spans)}, "its trace comes"
    )
    assert named
    plain = httpx.get(f"{cluster.url}/metrics")
    assert plain.headers["content-type"].startswith("text/plain") and " # {" not in plain.text


def test_a_sender_s_no_is_a_no_and_an_error_is_told(cluster: Cluster, collector: Collector) -> None:
    unwanted, wrong = "1" * 32, "2" * 32
    assert say(cluster, unwanted, flag="00").status_code == 200
    body = {"model": "nobody", "prompt": "x"}
    headers = {"traceparent": f"00-{wrong}-{PARENT}-01"}
    refused = httpx.post(f"{cluster.url}/v1/completions", json=body, headers=headers)
    assert refused.status_code == 404
    spans = trace_of(collector, wrong, {REQUEST})
    told = spans[REQUEST].attributes
    assert told["http.response.status_code"] == 404 and told["error.type"] == "model_not_found"
    assert collector.of(unwanted) == []
    lost = "4" * 32
    httpx.post(f"{cluster.url}/{'x' * 4000}", headers={"traceparent": f"00-{lost}-{PARENT}-01"})
    (stranger,) = trace_of(collector, lost, {"POST"}).values()
    assert len(stranger.attributes["url.path"]) == 256


def test_a_message_brings_its_trace_as_a_header(cluster: Cluster, collector: Collector) -> None:
    trace_id = "3" * 32

    async def ask() -> bytes:
        run = json.loads((cluster.data_dir / "run.json").read_text())
        seed = Path(cluster.data_dir / "credentials" / "tenant-default.nk")
        client = await nats.connect(run["nats_url"], nkeys_seed=str(seed))
        body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1}).encode()
        headers = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        await client.publish("symphony.inference.submit", body, reply=inbox, headers=headers)
        answer = await replies.next_msg(timeout=30)
        await client.close()
        return answer.data

    assert b"choices" in asyncio.run(ask())
    spans = trace_of(collector, trace_id, {"symphony.inference.submit", "place", "attempt"})
    assert spans["symphony.inference.submit"].parent == PARENT
    assert {"turn", "place", "attempt", "decode"} <= spans.keys()
