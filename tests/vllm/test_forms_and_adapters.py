"""Replies held to forms, and turns on adapters, on a real vLLM."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from loadtest.adapters import Recipe, modules_in, write_adapter
from services.worker.core.vllm.forms import Form
from services.worker.core.vllm.requests import AdapterFiles, VllmRequest
from services.worker.models.demo_model import make_demo_model
from services.worker.vllm.protocol import AdapterUnavailable
from shared.errors import InvalidRequest

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

PROMPT = list(range(1, 200))
NUM_NEW = 10
ENDS = [256, 258]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 9999}, "w": {"enum": ["x", "yes"]}},
    "required": ["n", "w"],
    "additionalProperties": False,
}


@dataclass
class Scene:
    """An engine with room for two adapters, and the loop that it lives in."""

    folder: Path
    engine: Any
    loop: asyncio.Runner
    numbers: Iterator[int] = field(default_factory=count)

    def run(self, *requests: VllmRequest) -> list[tuple[list[int], int | None]]:
        """All at once: the tokens of each, and how many of its prompt were cached."""

        async def together() -> list[tuple[list[int], int | None]]:
            return await asyncio.gather(*map(self._read, requests))

        return self.loop.run(together())

    async def _read(self, request: VllmRequest) -> tuple[list[int], int | None]:
        async with asyncio.timeout(120):
            outputs = [output async for output in self.engine.generate(request)]
        return [token for output in outputs for token in output.tokens], outputs[0].num_cached

    def held(self, form: Form, seed: int = 0) -> VllmRequest:
        """Sampled within a form, behind what was generated before."""
        args = {"max_tokens": 100, "seed": seed, "detokenize": False, "stop_token_ids": ENDS}
        tokens = PROMPT[:20] + form.generated
        request_id = str(next(self.numbers))
        return VllmRequest(request_id=request_id, tokens=tokens, args=args, salt="f", form=form)

    def on(self, adapter: AdapterFiles | None) -> VllmRequest:
        """The likeliest tokens."""
        args = {"max_tokens": NUM_NEW, "temperature": 0.0, "ignore_eos": True, "detokenize": False}
        return VllmRequest(
            request_id=str(next(self.numbers)), tokens=PROMPT, args=args, salt="a", adapter=adapter
        )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    from services.worker.config import WorkerConfig
    from services.worker.vllm_engine import start_engine

    folder = make_demo_model(tmp_path_factory.mktemp("models") / "model")
    lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16}
    settings = WorkerConfig.model_validate({
        "dtype": "float32", "max_model_len": 512, "num_threads": 1, "vllm_args": lora,
    })  # fmt: skip
    engine = start_engine(settings, "m", str(folder))
    with asyncio.Runner() as loop:
        try:
            yield Scene(folder, engine, loop)
        finally:
            engine.close()


def text(tokens: list[int]) -> str:
    """Of a reply that ended."""
    assert tokens[-1] in ENDS
    return bytes(tokens[:-1]).decode()


def is_json(reply: str) -> bool:
    made = json.loads(reply)
    return set(made) == {"n", "w"} and type(made["n"]) is int and made["w"] in ("x", "yes")


COMPACT = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
FORMS: dict[str, Callable[[str], bool]] = {
    LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA)): is_json,
    LLMatcher.grammar_from_json_schema(json.dumps(COMPACT)): lambda reply: (
        is_json(reply) and not re.search(r"\s", reply)
    ),
    LLMatcher.grammar_from_regex("[a-c]{2,4}-[0-9]{1,3}"): lambda reply: bool(
        re.fullmatch("[a-c]{2,4}-[0-9]{1,3}", reply)
    ),
    'start: "red" | "green" | "greener"': lambda reply: reply in ("red", "green", "greener"),
    'start: "<" pair+ ">"\npair: /[a-z]/ "=" /[0-9]/ ";"\n%ignore /x{0}/': lambda reply: bool(
        re.fullmatch("<([a-z]=[0-9];)+>", reply)
    ),
}


def test_replies_keep_their_forms(scene: Scene) -> None:
    grammars = [grammar for grammar in FORMS for _ in range(3)]
    forms = [scene.held(Form(grammar=each), seed) for seed, each in enumerate(grammars)]
    for grammar, (tokens, _) in zip(grammars, scene.run(*forms), strict=True):
        assert len(tokens) == 100 or FORMS[grammar](text(tokens)), bytes(tokens[:-1])


def test_a_turn_that_goes_on_keeps_the_rest_of_its_form(scene: Scene) -> None:
    said = [b'{"n": 12, "w": "y', b'{"n"', b'{"n": 1, "w": "x"}']
    grammar = next(iter(FORMS))
    replies = scene.run(*(scene.held(Form(grammar=grammar, generated=[*each])) for each in said))
    for before, (tokens, _) in zip(said, replies, strict=True):
        assert is_json(before.decode() + text(tokens))


def test_no_key_is_written_twice(scene: Scene) -> None:
    """Where one more has to come, and there are two."""
    keys = {
        "type": "object", "patternProperties": {"^[ab]$": {"const": 1}}, "minProperties": 2,
        "maxProperties": 2, "additionalProperties": False,
    }  # fmt: skip
    grammar = json.dumps({"grammars": [{"json_schema": keys}]})
    forms = [Form(grammar=grammar, json_after=[""], generated=[*b'{"a":1']) for _ in range(3)]
    for tokens, _ in scene.run(*(scene.held(form, seed) for seed, form in enumerate(forms))):
        assert json.loads('{"a":1' + text(tokens)) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("form", "why"),
    [
        (Form(grammar="start: foo"), "unknown name"),
        (Form(grammar='start: "a"', generated=[*b"b"]), "generated before"),
        (
            Form(
                grammar=json.dumps({"grammars": [{"json_schema": {
                    "type": "object", "patternProperties": {"^[ab]$": {"const": 1}},
                    "minProperties": 3, "additionalProperties": False,
                }}]}),
                json_after=[""], generated=[*b'{"a":1,"b":1,"'],
            ),
            "nothing can be said",
        ),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_kept_is_an_error_of_its_turn(
    scene: Scene, form: Form, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why) as failed:
        scene.run(scene.held(form))
    assert failed.value.code == "grammar_failed"
    ((tokens, _),) = scene.run(scene.held(Form(grammar='start: "a"')))
    assert text(tokens) == "a", "others go on"


def test_adapters_compute_what_merged_weights_do_and_share_no_kv(
    scene: Scene, tmp_path: Path
) -> None:
    recipes = [Recipe(seed=1, rank=4), Recipe(seed=2, rank=4, rank_pattern={"q_proj": 8})]
    folders = [
        write_adapter(tmp_path / f"{each.seed}", modules_in(scene.folder), each) for each in recipes
    ]
    files = [AdapterFiles(f"hash{at}", at + 1, str(folder)) for at, folder in enumerate(folders)]
    for each in files:
        scene.loop.run(scene.engine.add_adapter(each))
    kinds = [None, *files]
    assert scene.engine.adapter_room.resident_max == len(files)
    first = scene.run(*map(scene.on, kinds))
    assert [cached for _, cached in first] == [0, 0, 0]
    again = scene.run(*map(scene.on, kinds))
    assert [cached for _, cached in again] == [192, 192, 192], "each finds its own"
    expected = [merged(scene.folder, folder) for folder in (None, *folders)]
    assert [tokens for tokens, _ in first] == [tokens for tokens, _ in again] == expected
    assert len({tuple(tokens) for tokens in expected}) == 3
    with pytest.raises(AdapterUnavailable, match="No adapter found"):
        scene.loop.run(scene.engine.add_adapter(AdapterFiles("x", 9, str(tmp_path / "none"))))
    scene.loop.run(scene.engine.remove_adapter(1))
    assert scene.run(scene.on(files[1]))[0][0] == expected[2], "others go on"


def test_the_card_names_what_vllm_takes(scene: Scene) -> None:
    card = scene.engine.info.lora
    assert (card.layers_path, card.num_layers, card.rank_max) == ("model.layers", 6, 16)
    assert not card.outer and len(card.targets) == 7
    assert {
        (f"model.layers.0.{each.name}", each.num_in, each.num_out) for each in card.targets
    } == {
        (each.name, each.num_in, each.num_out)
        for each in modules_in(scene.folder)
        if ".0." in each.name
    }


def merged(folder: Path, adapter: Path | None) -> list[int]:
    """What transformers says with an adapter's weights added to the model's."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter is not None:
        config = json.loads((adapter / "adapter_config.json").read_text())
        tensors = load_file(adapter / "adapter_model.safetensors")
        for name in {key.split(".lora_")[0] for key in tensors}:
            a, b = (tensors[f"{name}.lora_{each}.weight"] for each in "AB")
            weight = model.get_submodule(name.removeprefix("base_model.model.")).weight
            weight.data += config["lora_alpha"] / len(a) * (b @ a)
    made = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=-1,
        pad_token_id=0,
    )  # fmt: skip
    found: list[int] = made[0, len(PROMPT) :].tolist()
    return found
