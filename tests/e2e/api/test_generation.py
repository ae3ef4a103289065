"""What fields mean to a reply: seen in the reply itself, on each engine."""

import asyncio
from typing import Any

from loadtest.deployment import wait_until
from tests.cluster import Cluster
from tests.e2e.api.conftest import CHAT, HI, MESSAGES, RESPONSES, TEXT, Api, Json, Run
from tests.e2e.replies import busy_workers

EOS = 258
SAMPLED: Json = {"temperature": 1.0, "max_tokens": 40}
PATHS = (CHAT, TEXT, RESPONSES, MESSAGES)


def test_streams_say_what_whole_replies_say(run: Run) -> None:
    cases: list[tuple[str, Json]] = [
        *((path, {}) for path in PATHS),
        (TEXT, {"stop": ["e"], "max_tokens": 60}),
        (TEXT, {"echo": True, "logprobs": 2}),
        (CHAT, {"logprobs": True, "top_logprobs": 2}),
        (TEXT, {"ignore_eos": False, "logit_bias": {str(EOS): 100}, "min_tokens": 5}),
    ]

    async def scenario(api: Api) -> None:
        for path, fields in cases:
            whole, events = await asyncio.gather(
                api.whole(path, **fields), api.events(path, **fields)
            )
            assert joined(path, events) == essence(path, whole), (path, fields)

    run(scenario)


def essence(path: str, whole: Json) -> list[Any]:
    """A reply's text, why it ended, and what its tokens are."""
    if path == RESPONSES:
        return [whole["output"][0]["content"][0]["text"], whole["status"]]
    if path == MESSAGES:
        return [whole["content"][0]["text"], whole["stop_reason"]]
    (choice,) = whole["choices"]
    scores = choice["logprobs"] or {}
    if path == CHAT:
        entries = [entry["token"] for entry in scores.get("content", [])]
        return [choice["message"]["content"], choice["finish_reason"], entries]
    return [choice["text"], choice["finish_reason"], scores.get("tokens", []), choice["token_ids"]]


def joined(path: str, events: list[Json]) -> list[Any]:
    """The same of a stream."""
    if path == RESPONSES:
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        return ["".join(deltas), events[-1]["response"]["status"]]
    if path == MESSAGES:
        texts = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
        return ["".join(texts), events[-2]["delta"]["stop_reason"]]
    choices = [choice for event in events for choice in event["choices"]]
    finish = next(c["finish_reason"] for c in choices if c["finish_reason"])
    scores = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    if path == CHAT:
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        return [text, finish, [entry["token"] for each in scores for entry in each["content"]]]
    return [
        "".join(choice["text"] for choice in choices),
        finish,
        [token for each in scores for token in each["tokens"]],
        [token for choice in choices for token in choice["token_ids"]],
    ]


def test_a_seed_repeats_a_reply_and_no_seed_does_not(run: Run) -> None:
    async def scenario(api: Api) -> None:
        first, again, other, *without = await asyncio.gather(
            *(api.tokens(**SAMPLED, seed=seed) for seed in (7, 7, 8, None, None))
        )
        assert first == again
        assert len({*map(tuple, (first, other, *without))}) == 4
        made = await api.whole(TEXT, **SAMPLED, seed=7, n=2)
        assert [choice["token_ids"] for choice in made["choices"]] == [first, other]

    run(scenario)


def test_limits_of_what_may_be_sampled(run: Run) -> None:
    async def scenario(api: Api) -> None:
        greedy = await api.tokens(max_tokens=40)
        for narrow in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}):
            assert await api.tokens(**{**SAMPLED, **narrow}) == greedy, narrow
        ranks = {"top_k": 3, "logprobs": 3, **SAMPLED}
        made = await api.whole(TEXT, **{**ranks, "return_tokens_as_token_ids": True})
        scores = made["choices"][0]["logprobs"]
        for token, likeliest in zip(scores["tokens"], scores["top_logprobs"], strict=True):
            assert token in likeliest and len(likeliest) == 3
        assert set(await api.tokens(**SAMPLED, allowed_token_ids=[70, 71])) == {70, 71}
        assert set(await api.tokens(**SAMPLED, logit_bias={"70": 100})) == {70}
        num_kinds = len(set(greedy))
        for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}):
            assert len(set(await api.tokens(max_tokens=40, **penalty))) > num_kinds, penalty
        prompt = [*range(65, 91)]
        repeated = await api.tokens(prompt=[prompt], repetition_penalty=10, max_tokens=20)
        assert len(set(repeated)) == 20 and not set(repeated) & set(prompt)

    run(scenario)


def test_a_prompt_s_log_probabilities_are_those_of_generating_it(run: Run) -> None:
    async def scenario(api: Api) -> None:
        made = await api.whole(TEXT, logprobs=0, return_tokens_as_token_ids=True)
        (choice,) = made["choices"]
        generated = choice["logprobs"]["token_logprobs"]
        prompt = [*choice["prompt_token_ids"], *choice["token_ids"]]
        read = await api.whole(TEXT, prompt=[prompt], echo=True, logprobs=0, max_tokens=0)
        scores = read["choices"][0]["logprobs"]["token_logprobs"]
        assert scores[0] is None
        differences = [abs(a - b) for a, b in zip(scores[-12:], generated, strict=True)]
        assert max(differences) < 0.02

    run(scenario)


def test_prefixes_are_found_again_under_their_own_salt(run: Run) -> None:
    async def scenario(api: Api) -> None:
        async def cached(salt: str) -> int:
            made = await api.whole(TEXT, prompt="a prefix of blocks " * 16, cache_salt=salt)
            found: int = made["usage"]["prompt_tokens_details"]["cached_tokens"]
            return found

        assert [await cached("own"), await cached("other")] == [0, 0]
        assert await cached("own") >= 256

    run(scenario)


def test_a_session_goes_on_where_it_was(run: Run) -> None:
    async def scenario(api: Api) -> None:
        messages = [{"role": "user", "content": "Tell me of the sea. " * 10}]
        first = await api.whole(CHAT, messages=messages, session_id="sea", max_tokens=80)
        said = first["choices"][0]["message"]
        messages += [{"role": "assistant", "content": said["content"]}, *HI]
        second = await api.whole(CHAT, messages=messages, session_id="sea")
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= (first["usage"]["total_tokens"] - 1) // 64 * 64
        record = (await api.http.get("/v1/sessions/sea")).json()
        assert record["num_turns"] == 2

    run(scenario)


def test_a_closed_connection_ends_its_turn(run: Run, cluster: Cluster) -> None:
    async def scenario(api: Api) -> None:
        body = {"prompt": "on and on", "model": "symphony-demo", "max_tokens": 8000,
                "ignore_eos": True, "stream": True}  # fmt: skip
        async with api.http.stream("POST", TEXT, json=body) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            await asyncio.to_thread(wait_until, lambda: bool(busy_workers(cluster)), "it runs")

    run(scenario)
    wait_until(lambda: not busy_workers(cluster), "no worker has the turn any more")


def test_no_line_of_a_log_failed(cluster: Cluster) -> None:
    for path in cluster.logs.glob("*.log"):
        assert "Logging error" not in path.read_text(errors="replace"), path.name
