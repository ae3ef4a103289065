"""A conversation that comes back: what was computed once is not computed again, whatever was killed
between two turns; advisories bring it up before its turn comes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from redis import Redis
from redis.exceptions import AuthenticationError

from loadtest.deployment import processes_of, wait_until
from services.worker.models.demo_model import DEMO_MODEL_ID, NUM_LAYERS
from shared.blocks import BLOCK_TOKENS
from shared.wire.subjects import ADVISORY_GET, ADVISORY_SUBMIT, INFERENCE_SUBMIT
from tests.cluster import Cluster

REPLY_TOKENS = 80


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("conversation") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[OpenAI]:
    with cluster.client() as made:
        yield made


class Conversation:
    """One session's messages.

    Attributes:
        covered: tokens in full blocks that have been computed: prompts and replies, but a reply's
            last token, which no later token has looked at yet.
    """

    def __init__(self, client: OpenAI, session_id: str) -> None:
        self._client = client
        self.session_id = session_id
        self._messages: list[ChatCompletionMessageParam] = []
        self.covered = 0

    @property
    def num_blocks(self) -> int:
        """Full ones; a tail is stored behind them."""
        return self.covered // BLOCK_TOKENS

    def say(self, text: str) -> int:
        """One turn; returns its `cached_tokens`, as far as they are in full blocks: a tail that
        ends within a character is not found."""
        self._messages.append({"role": "user", "content": text})
        reply = self._client.chat.completions.create(
            model=DEMO_MODEL_ID,
            messages=self._messages,
            max_tokens=REPLY_TOKENS,
            temperature=0,
            extra_body={"session_id": self.session_id, "ignore_eos": True},
        )
        content = reply.choices[0].message.content
        assert content and reply.choices[0].finish_reason == "length"
        self._messages.append({"role": "assistant", "content": content})
        usage = reply.usage
        assert usage is not None and usage.prompt_tokens_details is not None
        assert usage.completion_tokens == REPLY_TOKENS
        self.covered = (usage.total_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        cached = usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        return cached // BLOCK_TOKENS * BLOCK_TOKENS


def wait_stored(cluster: Cluster, num_blocks: int) -> None:
    """Until the disk holds as many blocks: write-behind has caught up with the last turn."""
    wait_until(
        lambda: cluster.look()["tiers"]["disk"]["blocks"] >= num_blocks,
        f"{num_blocks} blocks stored",
    )


def kill(cluster: Cluster, *names: str) -> None:
    """SIGKILL these children together; returns when all are back, and a new kvstore knows the
    worker: it has pages to write into."""
    pids = {name: cluster.kill(name) for name in names}
    for name, pid in pids.items():
        cluster.wait_restarted(name, pid)
    if "kvstore" in names:
        wait_until(
            lambda: cluster.look()["tiers"]["arena"]["pages_used"] > 0, "the worker is known again"
        )


def advisory(cluster: Cluster, session_id: str) -> dict[str, Any]:
    """The state of a session's advisory."""
    reply = httpx.get(f"{cluster.url}/v1/advisories/{session_id}")
    assert reply.status_code == 200
    state: dict[str, Any] = reply.json()
    return state


def test_history_is_never_computed_twice_whatever_was_killed(
    cluster: Cluster, client: OpenAI
) -> None:
    fox = Conversation(client, "fox")
    assert fox.say("Tell me a long story about a fox, a crow and a piece of cheese.") == 0
    for text in ("And then?", "Who was cleverer in the end?"):
        covered = fox.covered
        assert fox.say(text) == covered > 0

    wait_stored(cluster, fox.num_blocks)
    kill(cluster, "worker-0")
    covered = fox.covered
    assert fox.say("Was the worker told?") == covered  # from the arena

    wait_stored(cluster, fox.num_blocks)
    kill(cluster, "kvstore")
    covered = fox.covered
    assert fox.say("Not even by the clerk?") == covered  # from the worker's own pool

    wait_stored(cluster, fox.num_blocks)  # what was new in it, too
    kill(cluster, "worker-0", "kvstore")
    covered = fox.covered
    assert fox.say("And the keeper of the papers?") == covered  # from disk

    wait_stored(cluster, fox.num_blocks)
    cluster.stop()
    cluster.start()
    assert cluster.look()["tiers"]["disk"]["blocks"] >= fox.num_blocks
    covered = fox.covered
    assert fox.say("And on the next morning?") == covered  # from disk, by the record in Redis

    session = httpx.get(f"{cluster.url}/v1/sessions/fox").json()
    assert (session["num_turns"], session["model"]) == (7, DEMO_MODEL_ID)


def test_advised_session_is_up_before_its_turn(cluster: Cluster, client: OpenAI) -> None:
    crow = Conversation(client, "crow")
    num_before = cluster.look()["tiers"]["disk"]["blocks"]
    crow.say("Now tell the same from the crow's side, slowly, and leave nothing out." * 2)
    wait_stored(cluster, num_before + crow.num_blocks)
    kill(cluster, "worker-0")
    assert cluster.look()["tiers"]["gpu"]["pages_clean"] == 0

    paper_body = {
        "session_id": "crow", "model_id": DEMO_MODEL_ID, "expected_arrival": 2.5, "ordered": True,
        "priority": 1,
    }  # fmt: skip
    reply = httpx.post(f"{cluster.url}/v1/advisories", json=paper_body)
    assert reply.status_code == 202
    wait_until(lambda: advisory(cluster, "crow")["state"] == "placed", "a place is kept")
    (worker,) = cluster.look()["workers"]
    assert advisory(cluster, "crow")["worker_id"] == worker["worker_id"]
    num_pages = crow.num_blocks * NUM_LAYERS
    wait_until(
        lambda: cluster.look()["tiers"]["gpu"]["pages_clean"] >= num_pages, "its KV is in the pool"
    )
    covered = crow.covered
    assert crow.say("Go on.") == covered
    wait_until(lambda: advisory(cluster, "crow")["state"] == "used", "the advisory was of use")


@asynccontextmanager
async def bus(cluster: Cluster) -> AsyncIterator[Client]:
    """A plain NATS client, as an agent framework has one."""
    connection = await nats.connect(cluster.run.nats_url, nkeys_seed=cluster.nkey())
    try:
        yield connection
    finally:
        await connection.close()


async def ask(connection: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request in JSON and its answer."""
    reply = await connection.request(subject, json.dumps(body).encode(), timeout=5)
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


def test_advisory_by_nats(cluster: Cluster, client: OpenAI) -> None:
    cheese = Conversation(client, "cheese")
    cheese.say("And the cheese? What did the cheese think about all that, in the end?")
    body = {
        "session_id": "cheese", "model_id": DEMO_MODEL_ID, "expected_arrival": 1.0,
        "ordered": False, "priority": 2,
    }  # fmt: skip

    async def scenario() -> None:
        async with bus(cluster) as connection:
            subject = ADVISORY_SUBMIT.pattern
            await connection.publish(subject, json.dumps(body).encode())  # nobody is told the state
            state = await ask(connection, subject, body)
            assert (state["state"], state["num_merged"], state["priority"]) == ("placed", 1, 2)
            covered = cheese.covered
            assert await asyncio.to_thread(cheese.say, "Go on.") == covered
            state = await ask(connection, ADVISORY_GET.pattern, {"session_id": "cheese"})
            assert state["state"] == "used"

    asyncio.run(scenario())


def test_only_who_reads_the_data_folder_gets_to_the_servers(cluster: Cluster) -> None:
    async def knock() -> None:
        client = Client()
        with pytest.raises(NatsError, match="Authorization Violation"):
            await client.connect(cluster.run.nats_url, allow_reconnect=False, error_cb=ignore)
        await client.close()

    async def ignore(_: Exception) -> None:
        pass

    asyncio.run(knock())
    with Redis.from_url(cluster.run.redis_url) as redis, pytest.raises(AuthenticationError):
        redis.ping()
    with cluster.redis() as redis:
        assert redis.ping()
        assert redis.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    secret = cluster.run.redis_access.options("")["password"]
    for path in cluster.data_dir.rglob("*"):
        is_ours = path.name != "up.log" and "models" not in path.parts  # anybody's, or a test's
        assert not (is_ours and path.stat().st_mode & 0o077), f"{path} is open to others"
        if path.is_file() and path.suffix in (".log", ".json"):
            assert secret not in path.read_text(errors="replace")
    for words in processes_of(cluster.data_dir).values():
        assert secret not in words


def test_chat_by_nats(cluster: Cluster) -> None:
    body = {
        "model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": "Hello"}],
        "stream": True, "max_tokens": 20, "temperature": 0, "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip

    async def scenario() -> list[bytes]:
        received: list[bytes] = []
        async with bus(cluster) as connection:
            inbox = connection.new_inbox()
            replies = await connection.subscribe(inbox)
            await connection.publish(INFERENCE_SUBMIT, json.dumps(body).encode(), reply=inbox)
            while not received or received[-1] != b"[DONE]":
                received.append((await replies.next_msg(timeout=20)).data)
        return received

    *chunks, _ = asyncio.run(scenario())
    parsed = [json.loads(chunk) for chunk in chunks]
    choices = [choice for chunk in parsed for choice in chunk["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices)
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert len({chunk["id"] for chunk in parsed}) == 1
    assert parsed[-1]["usage"]["completion_tokens"] == 20


def test_a_request_is_found_in_the_log_of_every_service(cluster: Cluster) -> None:
    text = "What did the fox say to the crow about the cheese, and what did the crow answer then?"
    answer = httpx.post(
        f"{cluster.url}/v1/chat/completions",
        headers={"X-Request-Id": "find-me-7"},
        json={
            "model": DEMO_MODEL_ID, "messages": [{"role": "user", "content": text}],
            "session_id": "logged", "max_tokens": 5, "ignore_eos": True,
        },
        timeout=60,
    )  # fmt: skip
    assert answer.headers["x-request-id"] == "find-me-7"
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    def lines(service: str) -> list[dict[str, Any]]:
        log = (cluster.data_dir / "logs" / f"{service}.log").read_text().splitlines()
        found = [json.loads(line) for line in log if '"find-me-7"' in line]
        return [line for line in found if line["request_id"] == "find-me-7"]

    services = ("frontend", "scheduler", "worker-0", "kvstore", "tracker")
    wait_until(lambda: all(lines(service) for service in services), "every log has the request")
    said = {line["message"]: line for service in services for line in lines(service)}
    assert set(said) == {"access", "turn placed", "turn ended", "staged", "turn arrived"}
    assert said["access"]["completion_tokens"] == said["turn ended"]["num_generated"] == 5
    ended = said["turn ended"]
    assert said["access"]["cached_tokens"] == ended["num_prompt"] - ended["num_computed"] == cached
    assert said["turn ended"]["reason"] == "length"


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "role": {"enum": ["author", "reader"]},
        "born": {"type": "integer", "minimum": 1000, "maximum": 2000},
    },
    "required": ["name", "role", "born"],
    "additionalProperties": False,
}
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who are you?"}]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_reply_is_what_its_schema_says_whatever_the_model_is(
    client: OpenAI, temperature: float
) -> None:
    """The demo model has learned nothing: all that is right about this is the grammar's."""
    reply = client.chat.completions.create(
        model=DEMO_MODEL_ID,
        messages=ASKED,
        n=4,
        seed=7,
        temperature=temperature,
        response_format={
            "type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}
        },
    )  # fmt: skip
    for choice in reply.choices:
        assert choice.finish_reason == "stop" and choice.message.content is not None
        person = json.loads(choice.message.content)
        assert set(person) == {"name", "role", "born"} and len(person["name"]) <= 12
        assert person["role"] in {"author", "reader"} and 1000 <= person["born"] <= 2000


def test_a_forced_call_is_a_call_whole_and_streamed_beside_others(client: OpenAI) -> None:
    tools: Any = [
        {"type": "function", "function": {"name": "find", "parameters": PERSON}},
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "null"}}},
    ]
    choice: Any = {"type": "function", "function": {"name": "find"}}
    with client.chat.completions.stream(
        model=DEMO_MODEL_ID, messages=ASKED, tools=tools, tool_choice=choice, temperature=0
    ) as events:
        plain = client.chat.completions.create(
            model=DEMO_MODEL_ID, messages=ASKED, temperature=0, max_tokens=20
        )
        streamed = events.get_final_completion().choices[0]
    assert plain.choices[0].message.content is not None
    whole = client.chat.completions.create(
        model=DEMO_MODEL_ID, messages=ASKED, tools=tools, tool_choice="required", temperature=0,
        parallel_tool_calls=False,
    ).choices[0]  # fmt: skip
    for said in (streamed, whole):
        assert said.finish_reason == "tool_calls"
        (call,) = said.message.tool_calls or []
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        if call.function.name == "find":
            assert set(arguments) == {"name", "role", "born"}
        else:
            assert (call.function.name, arguments) == ("stop", None)


def test_completions_too_are_held_to_what_is_asked_for(client: OpenAI) -> None:
    for fields, texts in (
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "[ab]c{3}"}}, {"accc", "bccc"}),
        ({"ebnf": 'root ::= "x" "y" | "z"'}, {"xy", "z"}),
    ):
        reply = client.completions.create(
            model=DEMO_MODEL_ID, prompt="Well?", max_tokens=9, extra_body=fields
        )
        assert (reply.choices[0].finish_reason, reply.choices[0].text in texts) == ("stop", True)


def test_a_conversation_goes_on_by_its_last_responses_id(client: OpenAI) -> None:
    text = "where are we? " * 10
    first: Any = client.responses.create(
        model=DEMO_MODEL_ID, input=text, max_output_tokens=40, temperature=0
    )
    second: Any = client.responses.create(
        model=DEMO_MODEL_ID, input="and now?", max_output_tokens=20, previous_response_id=first.id
    )
    usage = second.usage
    assert usage.input_tokens > first.usage.total_tokens
    assert usage.input_tokens_details.cached_tokens >= BLOCK_TOKENS
    session_id = second.to_dict()["session_id"]
    answer = client.with_raw_response.responses.delete  # both go, and with the last the session
    for response in (second, first):
        assert answer(response.id).status_code == 200
    gone = httpx.get(f"{str(client.base_url).removesuffix('/v1/')}/v1/sessions/{session_id}")
    assert gone.status_code == 404


def test_where_history_was_is_told(cluster: Cluster, client: OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": DEMO_MODEL_ID, "prompt": "one two three " * 30, "max_tokens": 4,
        "extra_body": {"session_id": "told", "return_cached_tokens_details": True},
    }  # fmt: skip

    def told() -> tuple[int, dict[str, int]]:
        usage = client.completions.create(**ask).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        details = usage.prompt_tokens_details.to_dict()
        places: Any = details["cached_tokens_details"]
        return usage.prompt_tokens_details.cached_tokens or 0, places

    assert told() == (0, {})
    num, places = told()
    assert places == {"pool": num} and num > 0


def test_the_whole_deployment_is_told_at_one_port(cluster: Cluster) -> None:
    text = httpx.get(f"{cluster.url}/metrics").text
    for service in ("frontend", "scheduler", "tracker", "kvstore", "worker"):
        assert f'service="{service}"' in text, service
    view = httpx.get(f"{cluster.url}/v1/house").json()
    assert {one["state"] for one in view["services"]} == {"ready"} and len(view["services"]) == 5
    (worker,) = view["workers"]
    (host,) = view["hosts"]
    assert worker["num_pages"] > 0 and host["has_kvstore"] and host["disk"]["blocks"] > 0
