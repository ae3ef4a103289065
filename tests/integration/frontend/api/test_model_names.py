"""A model asked, listed and announced under another name."""

import asyncio
from pathlib import Path
from typing import Any

from shared.wire import messages as m
from shared.wire.subjects import ADVISORY_SUBMIT
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment

HI: Any = [{"role": "user", "content": "Hi"}]


def test_another_name_is_as_good(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    announced: list[m.Advisory] = []

    async def on_advisory(advisory: m.Advisory) -> m.AdvisoryState:
        announced.append(advisory)
        return m.AdvisoryState(session_id=advisory.session_id, state="placed")

    async def scenario(it: Deployment) -> None:
        await it.bus.serve(ADVISORY_SUBMIT, on_advisory)
        await it.bus.flush()
        for name in ("gpt-4o", "mine", MODEL):
            told = await it.openai.chat.completions.create(model=name, messages=HI)
            assert (told.model, told.choices[0].message.content) == (name, "hello")
            assert it.fake.submits[-1].model_id == MODEL
            assert (await it.openai.models.retrieve(name)).id == name
            body = {"session_id": "s", "model_id": name}
            assert (await it.http.post("/v1/advisories", json=body)).status_code == 202
            assert announced[-1].model_id == MODEL
        listed = {model.id: model async for model in it.openai.models.list()}
        assert set(listed) == {MODEL, "gpt-4o", "mine"}
        assert len({model.to_dict()["root"] for model in listed.values()}) == 1
        for name in ("gpt-4", "other"):
            answer = await it.http.post(
                "/v1/chat/completions", json={"model": name, "messages": HI}
            )
            assert answer.status_code == 404 and f"`{name}`" in answer.json()["error"]["message"]

    async def run() -> None:
        names = ["gpt-4o", f"mine={MODEL}", "other=nobody"]
        async with deployment(nats_server, redis_server, tmp_path, served_model_names=names) as it:
            await scenario(it)

    asyncio.run(run())


def test_the_only_model_need_not_be_named(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {
        "/v1/chat/completions": {"messages": HI},
        "/v1/completions": {"prompt": "Hi"},
        "/v1/responses": {"input": "Hi"},
    }

    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, lambda _: Reply("hello")) as it:
            for path, body in asked.items():
                answer = await it.http.post(path, json=body)
                assert answer.status_code == 200, answer.text
                assert answer.json()["model"] == MODEL
            unnamed = {"messages": HI, "max_tokens": 9}
            answer = await it.http.post("/v1/messages", json=unnamed)
            assert answer.json()["error"]["param"] == "model"

    asyncio.run(scenario())
