"""What ``/openapi.json`` says is what is answered."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from services.frontend.api.bodies.schemas import any_of, array, constant, record
from shared.adapters.record import adapters_redis_key
from shared.ids import HostId, ModelId, TenantId
from shared.wire import messages as m
from shared.wire.subjects import (
    ADAPTER_ADD_ANYWHERE,
    ADAPTER_REMOVE,
    ADVISORY_GET,
    ADVISORY_INVALIDATE,
    ADVISORY_SUBMIT,
)
from tests.adapters import CARD
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, deployment
from tests.integration.frontend.job_deployment import JobDeployment, job_deployment
from tests.integration.harness import eventually_answers

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,),
    "number": (int, float), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
KNOWN = {
    "type", "required", "properties", "additionalProperties", "items", "minItems", "minimum",
    "enum", "const", "anyOf", "title", "description",
}  # fmt: skip


def fault(value: Any, schema: dict[str, Any], where: str = "$") -> str | None:
    """What of a value a schema does not allow; None if nothing. Knows the words of answers."""
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    if "anyOf" in schema:
        faults = [fault(value, option, where) for option in schema["anyOf"]]
        return None if None in faults else f"{where}: none of {faults}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        return f"{where}: {value!r} is no {kinds}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: {value!r} is not one of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        return f"{where}: {value!r} is not {schema['const']!r}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"{where}: {value!r} is too small"
    if isinstance(value, dict):
        return _fault_of_object(value, schema, where)
    if isinstance(value, list):
        inner = (fault(item, schema.get("items", {}), f"{where}[]") for item in value)
        return next((one for one in inner if one is not None), None)
    return None


def _fault_of_object(value: dict[str, Any], schema: dict[str, Any], where: str) -> str | None:
    if missing := set(schema.get("required", [])) - value.keys():
        return f"{where}: without {missing}"
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", known and None)
    if others is None and (more := value.keys() - known.keys()):
        return f"{where}: it does not speak of {more}"
    inner = (fault(item, known.get(name, others or {}), f"{where}.{name}")
             for name, item in value.items())  # fmt: skip
    return next((one for one in inner if one is not None), None)


def _is_a(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({"a": 1}, record(a={"type": "string"})),
        ({}, record(a={"type": "string"})),
        ({"a": "x", "b": 1}, record(a={"type": "string"})),
        ([True], array({"type": "integer"})),
        ("a", constant("b")),
        (None, any_of({"type": "string"}, {"type": "number"})),
    ],
)
def test_faults_are_found(value: Any, schema: dict[str, Any]) -> None:
    assert fault(value, schema) is not None


class Described:
    """Sends requests and holds their answers against the description."""

    def __init__(self, http: httpx.AsyncClient, paths: dict[str, Any]) -> None:
        self.http = http
        self.paths = paths
        self.asked: set[tuple[str, str]] = set()

    async def ask(
        self, method: str, path: str, url: str = "", body: Any = None, files: Any = None
    ) -> httpx.Response:
        answer = await self.http.request(method, url or path, json=body, files=files)
        assert answer.status_code < 300, (path, answer.text)
        said = self.paths[path][method.lower()]["responses"][str(answer.status_code)]
        content = said.get("content", {})
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert (kind in content) if content else not answer.content, (path, kind)
        if kind == "application/json":
            wrong = fault(answer.json(), content[kind]["schema"])
            assert wrong is None, (path, wrong)
        self.asked.add((method.lower(), path))
        return answer


async def described(http: httpx.AsyncClient) -> Described:
    paths = (await http.get("/openapi.json")).json()["paths"]
    return Described(http, paths)


async def serve_advisories(it: Deployment) -> None:
    async def answer(key: m.Advisory | m.AdvisoryKey) -> m.AdvisoryState:
        return m.AdvisoryState(session_id=key.session_id, state="placed")

    await it.bus.serve(ADVISORY_SUBMIT, answer)
    await it.bus.serve(ADVISORY_GET, answer)
    await it.bus.serve(ADVISORY_INVALIDATE, answer)
    await it.bus.flush()


async def check_adapters(it: Deployment, api: "Described", redis_url: str) -> None:
    """A kvstore that has one adapter, whatever it is asked."""
    redis: Any = Redis.from_url(redis_url)
    record = m.AdapterRecord(
        name="a", tenant=TenantId("default"), model_id=ModelId(MODEL), adapter_hash="0" * 32,
        ranks={"q": 8}, lora_rank=8, num_bytes=1, image_bytes=1, root="/a", host_id=HostId("h"),
        created=1, revision=1, warnings=["odd"],
    )  # fmt: skip

    async def answer(message: m.AdapterAdd | m.AdapterRemove) -> m.AdapterRecord:
        return record

    await it.bus.serve(ADAPTER_ADD_ANYWHERE, answer)
    await it.bus.serve(ADAPTER_REMOVE, answer, "h")
    await it.bus.flush()
    for name in "ab":
        await redis.hset(adapters_redis_key(record.tenant), name, m.encode(record))
    body = {"lora_name": "a", "lora_path": "/a"}
    await api.ask("POST", "/v1/load_lora_adapter", body=body)
    files = [("f", (name, b"x")) for name in ("adapter_config.json", "adapter_model.safetensors")]
    await api.ask("PUT", "/v1/adapters/{name}", "/v1/adapters/a", files=files)
    await api.ask("GET", "/v1/adapters")
    await api.ask("GET", "/v1/adapters/{name}", "/v1/adapters/a")
    await api.ask("GET", "/v1/models/{model_id}", "/v1/models/a")
    await api.ask("POST", "/v1/unload_lora_adapter", body={"lora_name": "a"})
    await api.ask("DELETE", "/v1/adapters/{name}", "/v1/adapters/b")
    await redis.aclose()


async def check_conversations(ask: Callable[..., Awaitable[httpx.Response]]) -> None:
    """A conversation from its beginning to its end, and what counts and shortens one."""
    conversations = "/v1/conversations"
    one, items = f"{conversations}/{{conversation_id}}", [{"role": "user", "content": "hi"}]
    made = await ask("POST", conversations, body={"metadata": {"a": "b"}, "items": items})
    url = f"{conversations}/{made.json()['id']}"
    await ask("POST", one, url, body={"metadata": {}})
    await ask("GET", one, url)
    added = await ask("POST", f"{one}/items", f"{url}/items", body={"items": items})
    await ask("GET", f"{one}/items", f"{url}/items")
    item = f"{url}/items/{added.json()['data'][0]['id']}"
    await ask("GET", f"{one}/items/{{item_id}}", item)
    await ask("DELETE", f"{one}/items/{{item_id}}", item)
    await ask("DELETE", one, url)
    for path in ("input_tokens", "compact"):
        await ask("POST", f"/v1/responses/{path}", body={"model": MODEL, "input": "hi"})


async def check_generation(it: Deployment, redis_url: str) -> set[tuple[str, str]]:
    await serve_advisories(it)
    api = await described(it.http)
    ask = api.ask
    hi = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "session_id": "s"}
    more: dict[str, Any] = {"return_token_ids": True, "logprobs": True, "top_logprobs": 1}
    plain: dict[str, Any] = {}
    for fields in (plain, more):
        await ask("POST", "/v1/chat/completions", body=hi | fields)
    responses = "/v1/responses"
    likely = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    last = {"max_output_tokens": 2, "metadata": {"a": "b"}}
    for fields in (plain, likely, {"stream": True}, last):
        answer = await ask("POST", responses, body={"model": MODEL, "input": "hi"} | fields)
    previous = {"previous_response_id": answer.json()["id"]}
    answer = await ask("POST", responses, body={"model": MODEL, "input": "hi"} | previous)
    stored, response_id = f"{responses}/{{response_id}}", answer.json()["id"]
    await ask("GET", stored, f"{responses}/{response_id}")
    await ask("GET", f"{stored}/input_items", f"{responses}/{response_id}/input_items")
    await ask("DELETE", stored, f"{responses}/{response_id}")
    beside = {"model": MODEL, "input": "hi", "background": True}
    response_id = (await ask("POST", responses, body=beside)).json()["id"]
    await ask("POST", f"{stored}/cancel", f"{responses}/{response_id}/cancel")
    await ask("GET", stored, f"{responses}/{response_id}")
    await check_conversations(ask)
    message = {name: hi[name] for name in ("model", "messages")}
    for fields in (plain, {"stream": True}, {"max_tokens": 2, "system": "x"}):
        await ask("POST", "/v1/messages", body={"max_tokens": 9} | message | fields)
    await ask("POST", "/v1/messages/count_tokens", body=message)
    text = {"model": MODEL, "prompt": "x"}
    more = {"logprobs": 1, "echo": True, "return_token_ids": True}
    more["return_cached_tokens_details"] = True
    for fields in (plain, more, {"stream": True}):
        await ask("POST", "/v1/completions", body=text | fields)
    for path in ("/health", "/ping", "/version", "/metrics", "/v1/models"):
        await ask("GET", path)
    await ask("POST", "/ping")
    await ask("GET", "/v1/house")
    await ask("GET", "/dashboard/history")
    await ask("GET", "/v1/models/{model_id}", f"/v1/models/{MODEL}")
    await ask("GET", "/v1/sessions/{session_id}", "/v1/sessions/s")
    await ask("DELETE", "/v1/sessions/{session_id}", "/v1/sessions/s")
    await ask("POST", "/v1/advisories", body={"session_id": "s"})
    await ask("GET", "/v1/advisories/{session_id}", "/v1/advisories/s")
    await ask("DELETE", "/v1/advisories/{session_id}", "/v1/advisories/s")
    await check_adapters(it, api, redis_url)
    await ask("POST", "/tokenize", body={"prompt": "x"})
    await ask("POST", "/tokenize", body={"prompt": "x", "return_token_strs": True})
    await ask("POST", "/detokenize", body={"tokens": [97]})
    return api.asked


async def check_jobs(it: JobDeployment) -> set[tuple[str, str]]:
    api = await described(it.http)
    ask = api.ask
    await ask("GET", "/v1/models")
    await ask("GET", "/v1/models/{model_id}", "/v1/models/img")
    for encoding in ("float", "base64"):
        body = {"model": "emb", "input": "w1", "encoding_format": encoding}
        await ask("POST", "/v1/embeddings", body=body)
        await ask("POST", "/pooling", body=body)
    types = ["float", "base64"]
    cohere = {"model": "emb", "texts": ["w1"], "embedding_types": types}
    await ask("POST", "/v2/embed", body=cohere)
    await ask("POST", "/v1/classify", body={"model": "cls", "input": "w1"})
    await ask("POST", "/v1/rerank", body={"model": "rer", "query": "w1", "documents": ["w2"]})
    await ask("POST", "/score", body={"model": "rer", "text_1": "w1", "text_2": "w2"})
    return api.asked


def test_every_answer_is_as_described(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(
            nats_server, redis_server, tmp_path / "a", lora=CARD, data_dir=tmp_path / "data"
        ) as it:
            asked = await check_generation(it, redis_server.url)
            paths = (await it.http.get("/openapi.json")).json()["paths"]
        async with job_deployment(nats_server, redis_server, tmp_path / "b") as jobs:
            asked |= await check_jobs(jobs)
        asked.add(("get", "/v1/house/events"))  # which has no end: `test_dashboard`
        described = {(method, path) for path, item in paths.items() for method in item}
        assert asked == described, "an endpoint is not asked here"

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    asyncio.run(scenario())


async def errors_counted(http: httpx.AsyncClient) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    prefix = 'symphony_http_errors_total{code="503"} '
    return sum(float(line.removeprefix(prefix)) for line in lines if line.startswith(prefix))


def test_polls_of_a_deployment_that_is_not_ready_are_no_errors(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            it.fake.is_reporting = False
            await eventually_answers(
                lambda: it.http.get("/health"), lambda answer: answer.status_code == 503
            )
            before = await errors_counted(it.http)
            answer = await it.http.get("/health")
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "no_capacity"
            assert "retry-after" in answer.headers
            assert await errors_counted(it.http) == before
            await it.http.get(f"/v1/models/{MODEL}")
            assert await errors_counted(it.http) == before + 1

    asyncio.run(scenario())
