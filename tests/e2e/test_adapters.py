"""Adapters as their owners bring, ask and remove them: on an emulated worker that says which one it
runs on, and on a real model beside its base.
"""

import json
from pathlib import Path

import httpx

from loadtest.adapters import Module, Recipe, write_adapter
from services.worker.demo_adapters import KNOWN, make_demo_adapter
from services.worker.demo_model import DEMO_MODEL_ID
from shared.profiles import load_profile
from tests.e2e.house import House, symphony
from tests.e2e.replies import Reply

WIDTH = 4  # of the emulated model's only target
SAID_TOKENS = 120


def made(folder: Path, seed: int) -> Path:
    layers = range(load_profile("zero").num_layers)
    modules = [Module(f"layers.{layer}.emulated", WIDTH, WIDTH) for layer in layers]
    write_adapter(folder, modules, Recipe(seed=seed, rank=2))
    return folder


def said(house: House, model: str) -> str:
    """What a chat with a model answers, or the error's code."""
    body = {"model": model, "messages": [{"role": "user", "content": "who?"}], "max_tokens": 14}
    answer = httpx.post(f"{house.url}/v1/chat/completions", json=body, timeout=30).json()
    if "error" in answer:
        return str(answer["error"]["code"])
    return str(answer["choices"][0]["message"]["content"])


def test_adapters_are_brought_asked_and_removed(tmp_path: Path) -> None:
    fox, owl = made(tmp_path / "fox", 1), made(tmp_path / "owl", 2)

    def run(house: House, *words: str) -> str:
        done = symphony("adapters", *words, "--data-dir", str(house.data_dir))
        assert done.returncode == 0, done.stderr
        return done.stdout

    with House(tmp_path / "data", emulate="zero", adapters={"fox": fox}) as house:
        shown = json.loads(run(house, "show", "fox", "--json"))
        assert shown["tenant"] is None and shown["root"] == str(fox)
        assert said(house, "fox").startswith(f"I am {shown['adapter_hash'][:8]}")
        assert not said(house, "zero").startswith("I am")

        assert "owl is there, on zero" in run(house, "add", "owl", str(owl))
        again = symphony("adapters", "add", "owl", str(owl), "--data-dir", str(house.data_dir))
        assert again.returncode == 1 and "already been loaded" in again.stderr
        run(house, "add", "owl", str(owl), "--replace", "--base", "zero")
        listed = json.loads(run(house, "list", "--json"))["adapters"]
        assert [(each["id"], each["tenant"]) for each in listed] == [
            ("fox", None), ("owl", "default")
        ]  # fmt: skip
        assert "everybody" in run(house, "list") and "ranks" in run(house, "show", "owl")
        first = said(house, "owl")
        assert first.startswith("I am") and first != said(house, "fox")

        old = house.kill("kvstore")
        house.wait_restarted("kvstore", old)
        assert said(house, "owl") == first
        house.redis().flushall()
        assert said(house, "owl") == first, "who knows a name does not forget it"
        run(house, "remove", "fox", "--shared")
        assert said(house, "fox") == "model_not_found"

        house.stop()
        house.start()
        assert said(house, "owl") == first, "names outlive the house"
        assert said(house, "fox").startswith("I am"), "this one is offered at each start"


def upload(house: House, name: str, folder: Path, **fields: str) -> None:
    """Send an adapter's files along."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    parts = [(file, (file, data)) for file, data in files.items()]
    url = f"{house.url}/v1/adapters/{name}"
    answer = httpx.put(url, files=parts, data=fields, timeout=60)
    assert answer.status_code == 200, answer.text


def letters(tokens: list[tuple[int, ...]]) -> str:
    """What was said, but for tokens that stand for no byte."""
    return "".join(chr(*token) for token in tokens if len(token) == 1)


def test_three_voices_and_the_base_answer_side_by_side(tmp_path: Path) -> None:
    """From OpenAI's own client, in one batch; one is replaced while it speaks, and a fourth that
    nobody has seen answers its first request.
    """
    with House(tmp_path / "data") as house, house.client() as client:
        base = house.data_dir / "models" / DEMO_MODEL_ID
        folders = {name: make_demo_adapter(name, base, tmp_path / name) for name in KNOWN}
        for name, folder in folders.items():
            upload(house, name, folder)
        assert {*KNOWN, DEMO_MODEL_ID} == {model.id for model in client.models.list()}

        models = (*KNOWN, DEMO_MODEL_ID)
        replies = {model: Reply(client, SAID_TOKENS, model=model) for model in models}
        for reply in replies.values():
            reply.read(5)
        upload(house, "digits", folders["capitals"], load_inplace="true")
        upload(house, "new", folders["vowels"])
        said = {model: letters(reply.read_to_end()) for model, reply in replies.items()}
        for name, known in KNOWN.items():
            assert set(said[name]) <= set(known), f"{name} ends on the weights it began with"
        assert not set(said[DEMO_MODEL_ID]) <= {*"".join(KNOWN.values())}, "the base is untouched"

        for name, voice in (("digits", "capitals"), ("new", "vowels")):
            assert letters(Reply(client, SAID_TOKENS, model=name).read_to_end()) == said[voice]


def test_what_is_no_adapter_keeps_the_house_from_starting(tmp_path: Path) -> None:
    house = ("up", "--emulate", "zero", "--port", "0", "--data-dir", str(tmp_path / "data"))
    (tmp_path / "empty").mkdir()
    for offer, words in (
        ("fox", "give NAME=DIR"),
        ("digits", "it is for --model demo"),
        (f"a:b={tmp_path}", "lora_name"),
        (f"fox={tmp_path}/none", "no such folder"),
        (f"fox={tmp_path}/empty", "adapter_config.json"),
    ):
        done = symphony(*house, "--adapter", offer)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert done.stderr.strip().splitlines()[-1].startswith("symphony: --adapter")
