"""One-shot models asked as clients of vLLM and Cohere do it, over HTTP."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.wire import messages as m
from tests.conftest import Server
from tests.integration.frontend.job_deployment import (
    CLS,
    DIMENSIONS,
    LABELS,
    SEP,
    WORD,
    JobDeployment,
    embedding_of,
    job_deployment,
)


def framed(*numbers: int) -> list[int]:
    return [CLS, *(WORD + number for number in numbers), SEP]


async def ask(it: JobDeployment, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await it.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def refusal(it: JobDeployment, path: str, body: dict[str, Any]) -> tuple[str, str]:
    answer = await it.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["code"]


async def check_packed(it: JobDeployment) -> None:
    want = embedding_of(framed(1))
    base = {"model": "emb", "input": "w1", "encoding_format": "base64"}
    for endianness, dtype in (("little", "<f2"), ("big", ">f2"), ("native", "=f2")):
        fields = {"embed_dtype": "float16", "endianness": endianness}
        for path in ("/v1/embeddings", "/pooling"):
            made = (await ask(it, path, base | fields))["data"][0]
            packed = made["embedding" if path == "/v1/embeddings" else "data"]
            assert np.frombuffer(base64.b64decode(packed), dtype).tolist() == want
    unit = await ask(it, "/v1/embeddings", {"model": "emb", "input": "w1", "normalize": True})
    assert np.allclose(unit["data"][0]["embedding"], np.array(want) / np.linalg.norm(want))


async def check_pooling(it: JobDeployment) -> None:
    made = await ask(it, "/pooling", {"model": "emb", "input": ["w1", [7]], "task": "embed"})
    assert made["object"] == "list" and made["id"].startswith("pool-")
    assert made["data"] == [
        {"index": 0, "object": "pooling", "data": embedding_of(framed(1))},
        {"index": 1, "object": "pooling", "data": embedding_of([7])},
    ]
    made = await ask(it, "/pooling", {"model": "cls", "input": "w1"})
    assert sorted(made["data"][0]["data"]) == [0.125, 0.125, 0.75]
    for fields, param in (({"task": "embed"}, "task"), ({"dimensions": 2}, "dimensions")):
        body = {"model": "cls", "input": "w1"} | fields
        assert await refusal(it, "/pooling", body) == (param, "unsupported_value")
    assert await refusal(it, "/pooling", {"model": "rer", "input": "a"}) == (
        "model", "wrong_endpoint"
    )  # fmt: skip


async def check_score(it: JobDeployment) -> None:
    for first, second in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"),
                          ("data_1", "data_2")):  # fmt: skip
        for path in ("/score", "/v1/score"):
            made = await ask(it, path, {"model": "rer", first: "w1 w2", second: ["w1", "w5"]})
            assert made["data"] == [
                {"index": 0, "object": "score", "score": 1.0 * made["data"][0]["score"]},
                {"index": 1, "object": "score", "score": made["data"][1]["score"]},
            ]
            assert made["data"][0]["score"] > made["data"][1]["score"]
            assert made["id"].startswith("score-") and made["usage"]["prompt_tokens"] == 6 + 6
    many = {"model": "rer", "text_1": ["w1", "w2 w3"], "text_2": ["w4", "w5"]}
    await ask(it, "/score", many)
    given = [m.unpack_ints(it.inputs[job.job_id].tokens) for job in it.jobs()[-2:]]
    assert given == [[*framed(1), WORD + 4, SEP], [*framed(2, 3), WORD + 5, SEP]]
    made = await ask(it, "/score", {"model": "emb", "text_1": "w1", "text_2": ["w1", "w9 w9"]})
    a, b = np.array(embedding_of(framed(1))), np.array(embedding_of(framed(9, 9)))
    cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert [entry["score"] for entry in made["data"]] == pytest.approx([1.0, cosine])
    for body, param in (
        ({"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ({"text_1": "a"}, "text_1"),
        ({"text_1": "a", "text_2": [""]}, "text_2[0]"),
        ({"text_1": "a", "text_2": "w1 " * 40}, "text_2[0]"),
        ({"text_1": ["a", "w1 " * 40], "text_2": ["a", "b"]}, "text_1[1]"),
        ({"text_1": "a", "text_2": "b", "queries": "c"}, "text_1"),
    ):
        assert (await refusal(it, "/score", {"model": "rer", **body}))[0] == param, body
    assert (await refusal(it, "/score", {"model": "cls", "text_1": "a", "text_2": "b"})) == (
        "model", "wrong_endpoint"
    )  # fmt: skip


async def check_cohere(it: JobDeployment) -> None:
    base = {"model": "emb", "texts": ["w1", "w2"], "input_type": "search_query"}
    made = await ask(it, "/v2/embed", base)
    assert made["embeddings"] == {"float": [embedding_of(framed(n)) for n in (1, 2)]}
    assert made["texts"] == ["w1", "w2"] and made["id"]
    assert made["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 6}}
    made = await ask(it, "/v2/embed", base | {"embedding_types": ["base64"], "output_dimension": 2})
    packed = made["embeddings"]["base64"][0]
    assert np.linalg.norm(np.frombuffer(base64.b64decode(packed), "<f4")) == pytest.approx(1)
    long = base | {"texts": [" ".join(f"w{at}" for at in range(40))]}
    for truncate, kept in ((None, range(30)), ("END", range(30)), ("START", range(10, 40))):
        await ask(it, "/v2/embed", long | {"truncate": truncate})
        assert m.unpack_ints(it.inputs[it.jobs()[-1].job_id].tokens) == framed(*kept)
    for body, param in (
        (long | {"truncate": "NONE"}, "texts[0]"),
        (base | {"embedding_types": ["int8"]}, "embedding_types"),
        (base | {"texts": ["a", ""]}, "texts[1]"),
        (base | {"output_dimension": DIMENSIONS + 1}, "output_dimension"),
        (base | {"images": ["data:"]}, "images"),
    ):
        assert (await refusal(it, "/v2/embed", body))[0] == param, body


async def check_rerank(it: JobDeployment) -> None:
    body = {"model": "rer", "query": "w1 w2 w3", "documents": ["w4 w5 w6", "w7"]}
    made = await ask(it, "/v2/rerank", body | {"max_tokens_per_doc": 1})
    given = [m.unpack_ints(it.inputs[job.job_id].tokens) for job in it.jobs()[-2:]]
    assert given == [[*framed(1, 2, 3), WORD + 4, SEP], [*framed(1, 2, 3), WORD + 7, SEP]]
    assert made["usage"] == {"prompt_tokens": 14, "total_tokens": 14}
    made = await ask(it, "/classify", {"model": "cls", "input": "w1"})
    assert made["data"][0]["label"] in LABELS


def test_other_servers_endpoints(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with job_deployment(nats_server, redis_server, tmp_path, scheduler_shards=2) as it:
            await check_packed(it)
            await check_pooling(it)
            await check_score(it)
            await check_cohere(it)
            await check_rerank(it)

    asyncio.run(scenario())
