"""Adapters as their owners bring, ask and remove them: on an emulated worker that says which one it
runs on, and on a real model beside its base.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from loadtest.adapters import Module, Recipe, write_adapter
from loadtest.chaos.sse import Stream, stream_chat
from loadtest.deployment import symphony
from services.worker.models.demo_adapters import KNOWN, make_demo_adapter
from services.worker.models.demo_model import DEMO_MODEL_ID
from tests.cluster import Cluster, adapter_options
from tests.e2e.replies import STEADY, Reply, steady

BASE = STEADY
STEP_MS = 25.0
WIDTH = 4  # of its only target
NUM_LAYERS = 2
NUM_STREAMS, LATER = 16, 4
REPLY_TOKENS = 480  # twelve seconds: on a machine that stalls, too, they outlive what is done
SAID_TOKENS = 120


def made(folder: Path, seed: int) -> Path:
    modules = [Module(f"layers.{layer}.emulated", WIDTH, WIDTH) for layer in range(NUM_LAYERS)]
    write_adapter(folder, modules, Recipe(seed=seed, rank=2))
    return folder


def said(cluster: Cluster, model: str) -> str:
    """What a chat with a model answers, or the error's code."""
    body = {"model": model, "messages": [{"role": "user", "content": "who?"}], "max_tokens": 14}
    answer = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=30).json()
    if "error" in answer:
        return str(answer["error"]["code"])
    return str(answer["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose model says which adapter it runs on, a token a step."""
    folder = tmp_path_factory.mktemp("adapters")
    env = {"SYMPHONY_TURNS_RUNNING_MAX": str(NUM_STREAMS + LATER)}
    adapters = {"fox": made(folder / "fox", 1)}
    profile = steady(folder, STEP_MS)
    with Cluster(
        folder / "data", "--emulate", profile, *adapter_options(adapters), settings=env
    ) as cluster:
        yield cluster


def test_adapters_are_brought_asked_and_removed(emulated: Cluster, tmp_path: Path) -> None:
    cluster, owl = emulated, made(tmp_path / "owl", 2)

    def run(*words: str) -> str:
        done = symphony("adapters", *words, "--data-dir", str(cluster.data_dir))
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = json.loads(run("show", "fox", "--json"))
    assert shown["tenant"] is None and shown["root"].endswith("/fox")
    assert said(cluster, "fox").startswith(f"I am {shown['adapter_hash'][:8]}")
    assert not said(cluster, BASE).startswith("I am")

    assert f"owl is there, on {BASE}" in run("add", "owl", str(owl))
    again = symphony("adapters", "add", "owl", str(owl), "--data-dir", str(cluster.data_dir))
    assert again.returncode == 1 and "already been loaded" in again.stderr
    run("add", "owl", str(owl), "--replace", "--base", BASE)
    listed = json.loads(run("list", "--json"))["adapters"]
    assert [(each["id"], each["tenant"]) for each in listed] == [
        ("fox", None), ("owl", "default")
    ]  # fmt: skip
    assert "everybody" in run("list") and "ranks" in run("show", "owl")
    first = said(cluster, "owl")
    assert first.startswith("I am") and first != said(cluster, "fox")

    old = cluster.kill("kvstore")
    cluster.wait_restarted("kvstore", old)
    assert said(cluster, "owl") == first
    cluster.redis().flushall()
    assert said(cluster, "owl") == first, "who knows a name does not forget it"
    run("remove", "fox", "--shared")
    assert said(cluster, "fox") == "model_not_found"

    cluster.stop()
    cluster.start()
    assert said(cluster, "owl") == first, "names outlive the cluster"
    assert said(cluster, "fox").startswith("I am"), "this one is offered at each start"


def upload(cluster: Cluster, name: str, folder: Path, **fields: str) -> None:
    """Send an adapter's files along."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    parts = [(file, (file, data)) for file, data in files.items()]
    url = f"{cluster.url}/v1/adapters/{name}"
    answer = httpx.put(url, files=parts, data=fields, timeout=60)
    assert answer.status_code == 200, answer.text


def hash_of(cluster: Cluster, name: str) -> str:
    shown = httpx.get(f"{cluster.url}/v1/adapters/{name}").raise_for_status().json()
    return str(shown["adapter_hash"])


def sentence(adapter_hash: str) -> str:
    """What the emulated model says over and over on an adapter."""
    return f"I am {adapter_hash[:8]}. "


def unload(cluster: Cluster, name: str) -> None:
    answer = httpx.post(f"{cluster.url}/v1/unload_lora_adapter", json={"lora_name": name})
    assert answer.status_code == 200, answer.text


async def begin(cluster: Cluster, streams: list[Stream]) -> "list[asyncio.Task[None]]":
    """Streams on an adapter; returns when all have begun to speak."""
    content = orjson.dumps(
        {
            "model": "wolf",
            "messages": [{"role": "user", "content": "who?"}],
            "max_tokens": REPLY_TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
    )
    tasks = [asyncio.create_task(stream_chat(cluster.port, content, each)) for each in streams]
    while not all(each.pieces_at for each in streams):
        assert not any(each.trouble for each in streams), streams
        await asyncio.sleep(0.01)
    return tasks


def test_streams_end_on_the_weights_they_began_with(emulated: Cluster, tmp_path: Path) -> None:
    """Many of them, while their adapter is replaced, and then unloaded."""
    cluster = emulated
    first, later = ([Stream(0, 0, 0.0) for _ in range(num)] for num in (NUM_STREAMS, LATER))
    upload(cluster, "wolf", made(tmp_path / "one", 11))
    other, hashes = made(tmp_path / "two", 12), [hash_of(cluster, "wolf")]

    async def scenario() -> None:
        tasks = await begin(cluster, first)
        await asyncio.to_thread(upload, cluster, "wolf", other, load_inplace="true")
        hashes.append(await asyncio.to_thread(hash_of, cluster, "wolf"))
        tasks += await begin(cluster, later)
        await asyncio.to_thread(unload, cluster, "wolf")
        assert await asyncio.to_thread(said, cluster, "wolf") == "model_not_found"
        assert not any(task.done() for task in tasks), "too early to show anything"
        await asyncio.gather(*tasks)

    asyncio.run(scenario())
    assert hashes[0] != hashes[1]
    for streams, adapter_hash in zip((first, later), hashes, strict=True):
        whole = (sentence(adapter_hash) * REPLY_TOKENS)[:REPLY_TOKENS]
        assert {each.trouble for each in streams} == {""}
        assert {bytes(each.tokens).decode() for each in streams} == {whole}


def letters(tokens: list[tuple[int, ...]]) -> str:
    """What was said, but for tokens that stand for no byte."""
    return "".join(chr(*token) for token in tokens if len(token) == 1)


def test_three_voices_and_the_base_answer_side_by_side(tmp_path: Path) -> None:
    """From OpenAI's own client, in one batch; one is replaced while it speaks, and a fourth that
    nobody has seen answers its first request.
    """
    with Cluster(tmp_path / "data") as cluster, cluster.client() as client:
        base = cluster.data_dir / "models" / DEMO_MODEL_ID
        folders = {name: make_demo_adapter(name, base, tmp_path / name) for name in KNOWN}
        for name, folder in folders.items():
            upload(cluster, name, folder)
        assert {*KNOWN, DEMO_MODEL_ID} == {model.id for model in client.models.list()}

        models = (*KNOWN, DEMO_MODEL_ID)
        replies = {model: Reply(client, SAID_TOKENS, model=model) for model in models}
        for reply in replies.values():
            reply.read(5)
        upload(cluster, "digits", folders["capitals"], load_inplace="true")
        upload(cluster, "new", folders["vowels"])
        said = {model: letters(reply.read_to_end()) for model, reply in replies.items()}
        for name, known in KNOWN.items():
            assert set(said[name]) <= set(known), f"{name} ends on the weights it began with"
        assert not set(said[DEMO_MODEL_ID]) <= {*"".join(KNOWN.values())}, "the base is untouched"

        for name, voice in (("digits", "capitals"), ("new", "vowels")):
            assert letters(Reply(client, SAID_TOKENS, model=name).read_to_end()) == said[voice]


def test_what_is_no_adapter_keeps_the_deployment_from_starting(tmp_path: Path) -> None:
    cluster = ("up", "--emulate", "zero", "--port", "0", "--data-dir", str(tmp_path / "data"))
    (tmp_path / "empty").mkdir()
    for offer, words in (
        ("fox", "give NAME=DIR"),
        ("digits", "it is for --model demo"),
        (f"a:b={tmp_path}", "lora_name"),
        (f"fox={tmp_path}/none", "no such folder"),
        (f"fox={tmp_path}/empty", "adapter_config.json"),
    ):
        done = symphony(*cluster, "--adapter", offer)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert done.stderr.strip().splitlines()[-1].startswith("symphony: --adapter")
