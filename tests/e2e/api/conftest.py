"""One deployment an engine, of the same model, for all tests of this folder."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from cli.vllm_environment import VARIABLE
from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster

VLLM_PYTHON = os.environ.get(VARIABLE, "")
ENGINES = ["symphony", *([pytest.param("vllm", marks=pytest.mark.vllm)] if VLLM_PYTHON else [])]
PATIENCE_S = 120.0
Json = dict[str, Any]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
HI: list[Json] = [{"role": "user", "content": "hi"}]
MODEL: Json = {"model": DEMO_MODEL_ID, "temperature": 0}
BODIES: Mapping[str, Json] = {
    CHAT: {**MODEL, "messages": HI, "max_tokens": 12, "ignore_eos": True},
    TEXT: {
        **MODEL, "prompt": "The sea is salt because", "max_tokens": 12, "ignore_eos": True,
        "return_token_ids": True,
    },
    RESPONSES: {**MODEL, "input": "hi", "max_output_tokens": 12, "store": False},
    MESSAGES: {**MODEL, "messages": HI, "max_tokens": 12},
}  # fmt: skip


@dataclass(frozen=True)
class Api:
    """A deployment's HTTP interface: what a test leaves out of a body is that of `BODIES`."""

    http: httpx.AsyncClient

    async def ask(self, path: str, **fields: Any) -> httpx.Response:
        return await self.http.post(path, json={**BODIES[path], **fields})

    async def whole(self, path: str, **fields: Any) -> Json:
        answer = await self.ask(path, **fields)
        assert answer.status_code == 200, answer.text
        made: Json = answer.json()
        return made

    async def tokens(self, **fields: Any) -> list[int]:
        """Of a completion's only choice."""
        made = await self.whole(TEXT, **fields)
        found: list[int] = made["choices"][0]["token_ids"]
        return found

    async def events(self, path: str, **fields: Any) -> list[Json]:
        """A stream's, to its end."""
        answer = await self.ask(path, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        data = [line.removeprefix("data: ") for line in answer.text.splitlines()]
        return [json.loads(line) for line in data if line.startswith("{")]


Run = Callable[[Callable[[Api], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="package", params=ENGINES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    engine: str = request.param
    settings = {"SYMPHONY_DTYPE": "float32"}  # so that both say the same
    if engine == "vllm":
        settings |= {VARIABLE: VLLM_PYTHON, "SYMPHONY_NUM_THREADS": "1"}
    folder = tmp_path_factory.mktemp("api") / "data"
    with Cluster(folder, "--engine", engine, settings=settings) as running:
        yield running


@pytest.fixture
def run(cluster: Cluster) -> Run:
    """Runs a scenario against the deployment."""

    def run_one(scenario: Callable[[Api], Coroutine[Any, Any, None]]) -> None:
        async def connected() -> None:
            limits = httpx.Limits(max_connections=8)
            async with httpx.AsyncClient(
                base_url=cluster.url, timeout=PATIENCE_S, limits=limits
            ) as http:
                await scenario(Api(http))

        asyncio.run(connected())

    return run_one


@pytest.fixture(scope="package")
def answers() -> dict[str, Any]:
    """By case: what the first engine said, for the others to be compared with."""
    return {}
