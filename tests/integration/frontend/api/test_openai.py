"""The official client against a frontend, with a worker that says what it is told."""

import asyncio
from pathlib import Path

import openai
import pytest
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionMessageParam,
)

from shared.wire import messages as m
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Reply, deployment, eventually

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def test_chat_whole_and_streamed(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        said = Reply("h\u00e4llo \U0001f600 there")
        async with deployment(nats_server, redis_server, tmp_path, lambda _: said) as it:
            whole = await it.openai.chat.completions.create(model=MODEL, messages=HI)
            assert whole.choices[0].message.content == said.text
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage is not None and whole.usage.prompt_tokens_details is not None
            assert whole.usage.prompt_tokens_details.cached_tokens == 3
            assert whole.usage.completion_tokens == len(said.text.encode()) + 1
            chunks = [
                chunk
                async for chunk in await it.openai.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                    stream=True,
                    stream_options={"include_usage": True},
                )
            ]
            assert it.fake.prompts[0].tokens == it.fake.prompts[1].tokens
            assert len({chunk.id for chunk in chunks}) == 1
            assert chunks[0].choices[0].delta.role == "assistant"
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == said.text
            assert "\N{REPLACEMENT CHARACTER}" not in text
            assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "stop"
            assert all(c.choices[0].finish_reason is None for c in chunks[:-2])
            assert chunks[-1].choices == [] and chunks[-1].usage is not None
            assert chunks[-1].usage.total_tokens == whole.usage.total_tokens

    asyncio.run(scenario())


def test_models_and_choices_and_logprobs(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(
            nats_server, redis_server, tmp_path, lambda _: Reply("\u00e4b")
        ) as it:
            models = [model async for model in it.openai.models.list()]
            assert [model.id for model in models] == [MODEL]
            assert (await it.openai.models.retrieve(MODEL)).id == MODEL
            with pytest.raises(openai.NotFoundError) as caught:
                await it.openai.models.retrieve("nope")
            assert caught.value.code == "model_not_found"

            two = await it.openai.chat.completions.create(
                model=MODEL, messages=HI, n=2, seed=7, logprobs=True, top_logprobs=2
            )
            assert [choice.index for choice in two.choices] == [0, 1]
            assert sorted(p.sampling.seed or 0 for p in it.fake.prompts) == [7, 8]
            assert two.choices[1].logprobs is not None
            content = two.choices[1].logprobs.content
            assert content is not None
            assert b"".join(bytes(entry.bytes or []) for entry in content) == "\u00e4b".encode()
            assert len(content[0].top_logprobs) == 2

            done = await it.openai.completions.create(
                model=MODEL, prompt=[[81], [65, 66]], logprobs=1, echo=True, max_tokens=2
            )
            assert [choice.text for choice in done.choices] == ["Q\u00e4", "AB\u00e4"]
            block = done.choices[1].logprobs
            assert block is not None
            assert block.text_offset == [0, 1, 2, 2]
            assert block.token_logprobs is not None and block.token_logprobs[0] is None
            assert done.choices[0].finish_reason == "length"

            only = await it.openai.completions.create(
                model=MODEL, prompt="abc", logprobs=0, echo=True, max_tokens=0
            )
            assert only.choices[0].text == "abc"
            assert only.choices[0].logprobs is not None
            assert len(only.choices[0].logprobs.tokens or []) == 3
            assert only.usage is not None and only.usage.completion_tokens == 0

    asyncio.run(scenario())


def test_stop_string_is_held_back_and_cancels(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        never = asyncio.Event()
        said = Reply("one STtwo STOP three", hold=never, hold_at=14)
        async with deployment(nats_server, redis_server, tmp_path, lambda _: said) as it:
            stream = await it.openai.chat.completions.create(
                model=MODEL, messages=HI, stop=["STOP"], stream=True
            )
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(texts) == "one STtwo "
            await eventually(lambda: bool(it.fake.cancels))
            assert it.fake.cancels[0].turn_id == it.fake.prompts[0].turn_id

    asyncio.run(scenario())


def test_what_a_session_goes_on_from_behind_a_stop_string_is_told(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    """The worker is some tokens ahead, and keeps the KV of what the next turn begins with."""

    async def scenario() -> None:
        reply = Reply("before STOP after", hold=asyncio.Event(), hold_at=13)
        async with deployment(nats_server, redis_server, tmp_path, lambda _: reply) as it:
            for _ in range(2):
                await it.openai.chat.completions.create(
                    model=MODEL, messages=HI, stop="STOP", extra_body={"session_id": "s"}
                )
            await eventually(lambda: len(it.fake.cancels) == 2)
            said = [*HI, ChatCompletionAssistantMessageParam(role="assistant", content="before ")]
            said += HI
            await it.openai.chat.completions.create(
                model=MODEL, messages=said, stop="STOP", extra_body={"session_id": "s"}
            )
            first, _, third = it.fake.prompts
            num_prompt = len(m.unpack_ints(first.tokens))
            kept = [cancel.num_kept for cancel in it.fake.cancels[:2]]
            assert kept == [num_prompt + len("before ")] * 2
            assert third.num_history == kept[1]
            await it.openai.chat.completions.create(model=MODEL, messages=HI, stop="STOP")
            await eventually(lambda: len(it.fake.cancels) == 4)
            assert it.fake.cancels[3].num_kept == 0, "nobody goes on from it"

    asyncio.run(scenario())


def test_disconnect_cancels_streaming_or_not(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        said = Reply("abcdef", hold=asyncio.Event(), hold_at=3)
        async with deployment(nats_server, redis_server, tmp_path, lambda _: said) as it:
            stream = await it.openai.chat.completions.create(model=MODEL, messages=HI, stream=True)
            await anext(aiter(stream))
            await stream.close()
            await eventually(lambda: len(it.fake.cancels) == 1)
            with pytest.raises(openai.APITimeoutError):
                await it.openai.chat.completions.create(model=MODEL, messages=HI, timeout=0.3)
            await eventually(lambda: len(it.fake.cancels) == 2)
            assert {c.turn_id for c in it.fake.cancels} == {p.turn_id for p in it.fake.prompts}

    asyncio.run(scenario())


def test_a_worker_that_dies_is_continued_by_the_next(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        said = Reply("a long enough reply", die_at=6)
        async with deployment(
            nats_server, redis_server, tmp_path, lambda _: said, resubmit_silent_s=0.3
        ) as it:
            stream = await it.openai.chat.completions.create(model=MODEL, messages=HI, stream=True)
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(texts) == said.text
            assert [p.num_generated for p in it.fake.prompts] == [0, 6]
            assert [p.attempt for p in it.fake.prompts] == [1, 2]
            seeds = {p.sampling.seed for p in it.fake.prompts}
            assert len(seeds) == 1 and None not in seeds

    asyncio.run(scenario())


def test_failures_before_and_after_the_first_byte(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        def reply(prompt: m.Prompt) -> Reply:
            if b"none" in bytes(t for t in m.unpack_ints(prompt.tokens) if t < 256):
                return Reply(
                    failure=m.TurnFailed(
                        turn_id=prompt.turn_id, code="overloaded", message="full", retry_after_s=7
                    )
                )
            return Reply("abcdef", error_at=3)

        async with deployment(nats_server, redis_server, tmp_path, reply) as it:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "none"}]}
            for stream in (False, True):
                answer = await it.http.post("/v1/chat/completions", json=body | {"stream": stream})
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "7"
                assert answer.json()["error"]["code"] == "overloaded"
            answer = await it.http.post(
                "/v1/chat/completions", json={"model": MODEL, "messages": HI, "stream": True}
            )
            assert answer.status_code == 200
            assert '"code":"worker_broke"' in answer.text
            assert "[DONE]" not in answer.text and '"finish_reason":"stop"' not in answer.text
            answer = await it.http.post(
                "/v1/chat/completions", json={"model": MODEL, "messages": HI}
            )
            assert answer.status_code == 500

    asyncio.run(scenario())


def test_usage_tells_where_history_was_if_asked(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as it:
            body = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 2}
            usage = (await it.http.post("/v1/completions", json=body)).json()["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": 6, "cache_write_tokens": 0}
            body["return_cached_tokens_details"] = True
            usage = (await it.http.post("/v1/completions", json=body)).json()["usage"]
            places = {"pool": 2, "disk": 4}
            told = {"cached_tokens": 6, "cache_write_tokens": 0, "cached_tokens_details": places}
            assert usage["prompt_tokens_details"] == told

    asyncio.run(scenario())
