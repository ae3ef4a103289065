"""Metrics of the whole deployment at the frontend's port."""

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from shared.runtime.exposition import pack_text
from shared.wire import messages as m
from shared.wire.subjects import SERVICE_METRICS
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, deployment
from tests.integration.harness import connected

LENGTHS = ("symphony_request_prompt_tokens_sum", "symphony_request_generation_tokens_sum")
TEXT = "# HELP symphony_x A thing\n# TYPE symphony_x gauge\nsymphony_x 7.0\n"


def samples(text: str, name: str) -> dict[str, float]:
    return {
        sample.labels.get("process", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_it_has_everybodys(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    asked: list[m.MetricsWanted] = []

    async def scenario(it: Deployment) -> None:
        async def answer(question: m.MetricsWanted) -> m.ServiceMetrics:
            asked.append(question)
            return m.ServiceMetrics(service="worker", process="w1", packed=pack_text(TEXT))

        async def lie(_: m.MetricsWanted) -> m.ServiceMetrics:
            return m.ServiceMetrics(service="worker", process="w2", packed="?")

        async with connected(nats_server.url) as other, connected(nats_server.url) as liar:
            await other.serve(SERVICE_METRICS, answer)
            await liar.serve(SERVICE_METRICS, lie)
            await other.flush()
            await liar.flush()
            text = (await it.http.get("/metrics")).text
            assert samples(text, "symphony_x") == {"w1": 7.0}
            (frontend,) = samples(text, "symphony_num_requests_running")
            assert frontend.startswith("fe-") and 'service="frontend"' in text
            asked.clear()
            texts = await asyncio.gather(*(it.http.get("/metrics") for _ in range(5)))
            assert all(samples(each.text, "symphony_x") == {"w1": 7.0} for each in texts)
            assert len(asked) < 5, "those that ask at the same time share an answer"
        gone = (await it.http.get("/metrics")).text
        assert samples(gone, "symphony_x") == {}

    async def run() -> None:
        async with deployment(nats_server, redis_server, tmp_path, metrics_of_house=True) as it:
            await scenario(it)

    asyncio.run(run())


def test_it_has_its_own_alone(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def run() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            text = (await it.http.get("/metrics")).text
            assert samples(text, "symphony_num_requests_running").keys() == {""}
            before = {name: samples(text, name)[""] for name in LENGTHS}
            body = {"model": MODEL, "prompt": "four", "max_tokens": 3}
            await it.http.post("/v1/completions", json=body)
            text = (await it.http.get("/metrics")).text
            gained = [samples(text, name)[""] - before[name] for name in LENGTHS]
            assert gained == [4.0, 3.0]

    asyncio.run(run())
