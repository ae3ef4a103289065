"""Adapters on days on which files rot, processes are killed while one is added, and names change
under those that use them.
"""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from loadtest.adapters import Recipe, modules_in, write_adapter
from loadtest.chaos.sse import Stream, stream_chat
from services.worker.demo_adapters import make_demo_adapter
from services.worker.demo_model import DEMO_MODEL_ID
from tests.e2e.house import House, wait_until
from tests.e2e.replies import Reply
from tests.e2e.test_adapters import letters, made, said, upload

EMULATED = "steady"
STEP_MS = 20.0
NUM_STREAMS = 64
REPLY_TOKENS = 100  # two seconds
LATER = 8
ADDS = 12


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A house whose model says which adapter it runs on, a token a step."""
    folder = tmp_path_factory.mktemp("adapters")
    profile = {
        "name": EMULATED, "base_ms": STEP_MS, "prefill_ms_per_token": 0.0,
        "decode_ms_per_turn": 0.0, "num_layers": 2, "max_model_len": 8192,
        "num_kv_tokens": 2_000_000,
    }  # fmt: skip
    (folder / "profile.json").write_text(json.dumps(profile))
    with House(folder / "data", emulate=str(folder / "profile.json")) as house:
        yield house


def hash_of(house: House, name: str) -> str:
    shown = httpx.get(f"{house.url}/v1/adapters/{name}").raise_for_status().json()
    return str(shown["adapter_hash"])


def sentence(adapter_hash: str) -> str:
    """What the emulated model says over and over on an adapter."""
    return f"I am {adapter_hash[:8]}. "


def unload(house: House, name: str) -> None:
    answer = httpx.post(f"{house.url}/v1/unload_lora_adapter", json={"lora_name": name})
    assert answer.status_code == 200, answer.text


async def begin(house: House, streams: list[Stream]) -> "list[asyncio.Task[None]]":
    """Streams on an adapter; returns when all have begun to speak."""
    content = orjson.dumps(
        {
            "model": "fox",
            "messages": [{"role": "user", "content": "who?"}],
            "max_tokens": REPLY_TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
    )
    tasks = [asyncio.create_task(stream_chat(house.port, content, each)) for each in streams]
    while not all(each.pieces_at for each in streams):
        assert not any(each.trouble for each in streams), streams
        await asyncio.sleep(0.01)
    return tasks


def test_streams_end_on_the_weights_they_began_with(emulated: House, tmp_path: Path) -> None:
    """64 of them, while their adapter is replaced, and then unloaded."""
    house, first, later = (
        emulated,
        *([Stream(0, 0, time.monotonic()) for _ in range(num)] for num in (NUM_STREAMS, LATER)),
    )
    upload(house, "fox", made(tmp_path / "one", 1))
    hashes = [hash_of(house, "fox")]

    async def scenario() -> None:
        tasks = await begin(house, first)
        other = made(tmp_path / "two", 2)
        await asyncio.to_thread(upload, house, "fox", other, load_inplace="true")
        hashes.append(await asyncio.to_thread(hash_of, house, "fox"))
        tasks += await begin(house, later)
        await asyncio.to_thread(unload, house, "fox")
        assert await asyncio.to_thread(said, house, "fox") == "model_not_found"
        assert not any(task.done() for task in tasks), "too early to show anything"
        await asyncio.gather(*tasks)

    asyncio.run(scenario())
    assert hashes[0] != hashes[1]
    for streams, adapter_hash in zip((first, later), hashes, strict=True):
        whole = (sentence(adapter_hash) * REPLY_TOKENS)[:REPLY_TOKENS]
        assert {each.trouble for each in streams} == {""}
        assert {bytes(each.tokens).decode() for each in streams} == {whole}


@pytest.mark.slow
def test_a_kvstore_killed_while_adding_has_it_whole_or_not_at_all(
    emulated: House, tmp_path: Path
) -> None:
    """At any moment; where it was refused or not answered, it can be added again."""
    house, rng, seen = emulated, random.Random(7), set[bool]()
    root = house.data_dir / "adapters"
    upload(house, "owl", made(tmp_path / "owl", 100))
    owl = said(house, "owl")
    for number in range(ADDS):
        name, folder = f"new{number}", made(tmp_path / f"{number}", 200 + number)
        adding = threading.Thread(target=try_upload, args=(house, name, folder))
        adding.start()
        time.sleep(rng.random() * 0.05)
        house.wait_restarted("kvstore", house.kill("kvstore"))
        adding.join()
        assert not list(root.rglob(".new*"))
        wait_until(lambda: said(house, "owl") == owl, "those that were there are")
        answer = said(house, name)
        seen.add(answer == "model_not_found")
        if answer == "model_not_found":
            upload(house, name, folder)
            answer = said(house, name)
        assert answer == sentence(hash_of(house, name))[: len(answer)] and "I am" in answer
    print(f"some were there, some not: {seen}")


def try_upload(house: House, name: str, folder: Path) -> None:
    """Send an adapter's files along, whatever is answered."""
    parts = [(path.name, (path.name, path.read_bytes())) for path in folder.iterdir()]
    httpx.put(f"{house.url}/v1/adapters/{name}", files=parts, timeout=60)


@pytest.mark.slow
def test_damaged_files_cost_the_turns_of_their_adapter_only(tmp_path: Path) -> None:
    with House(tmp_path / "data") as house, house.client() as client:
        base = house.data_dir / "models" / DEMO_MODEL_ID
        upload(house, "vowels", make_demo_adapter("vowels", base, tmp_path / "vowels"))
        upload(house, "torn", write_adapter(tmp_path / "torn", modules_in(base), Recipe()))
        stored = house.data_dir / "adapters" / hash_of(house, "torn") / "adapter_model.safetensors"
        good = stored.read_bytes()
        stored.write_bytes(good[:-4] + b"\0\0\0\0")
        asking = threading.Thread(target=lambda: answers.append(said(house, "torn")))
        answers: list[str] = []
        asking.start()
        num_others = 0
        while asking.is_alive():
            assert set(letters(Reply(client, 20, model="vowels").read_to_end())) <= set("aeiou")
            Reply(client, 20).read_to_end()
            num_others += 1
        assert answers == ["adapter_unavailable"] and num_others > 1
        stored.write_bytes(good)
        assert said(house, "torn") != "adapter_unavailable", "it is read anew"
