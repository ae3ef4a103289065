"""`symphony adapters`: what is sent, what is shown, and what is checked without a deployment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cli.adapters.client import AdapterClient
from cli.adapters.offered import KNOWN, Offer, check_offers, make_offers, models_for, parse_offer
from cli.adapters.offline import base_card, check
from cli.adapters.showing import lines_of
from cli.main import app
from cli.start.options import DeploymentOptions
from cli.start.plan import plan_deployment
from loadtest.adapters import Recipe, modules_of
from loadtest.adapters import write_adapter as write_any
from services.worker.device.model import load_model
from services.worker.models.demo_adapters import KNOWN as MADE
from services.worker.models.demo_model import make_demo_model
from shared.adapters.config import AdapterInvalid
from shared.errors import ConfigError, InvalidRequest, NotFound, PeerUnavailable, SymphonyError
from tests.adapters import write_adapter
from tests.unit.shared.adapters.adapter_files import change_config

RECORD: dict[str, Any] = {
    "id": "fox", "tenant": None, "parent": "m", "root": "/a", "adapter_hash": "0" * 32,
    "lora_rank": 8, "ranks": {"q": 8}, "num_bytes": 10, "image_bytes": 20, "revision": 1,
    "warnings": ["odd \x1b[31m"],
}  # fmt: skip


def client(answer: Callable[[httpx.Request], httpx.Response]) -> AdapterClient:
    return AdapterClient(
        httpx.Client(base_url="http://house", transport=httpx.MockTransport(answer))
    )


def test_a_folder_is_sent_as_a_form_with_its_files_alone(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a")
    (folder / "optimizer.pt").write_text("secret")
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        sent.append(request)
        return httpx.Response(200, json=RECORD)

    assert client(answer).add("acme/fox", folder, base="m", replace=True) == RECORD
    (request,) = sent
    assert (request.method, request.url.path) == ("PUT", "/v1/adapters/acme/fox")
    assert b'filename="adapter_model.safetensors"' in request.content
    assert b"secret" not in request.content
    for name, value in (("base_model_name", "m"), ("load_inplace", "true"), ("shared", "false")):
        assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in request.content


def test_what_cannot_be_sent_is_told_before_anything_is(tmp_path: Path) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise AssertionError("it was sent")

    folder = write_adapter(tmp_path / "a")
    for name, path, error in (
        ("a:b", folder, InvalidRequest),
        ("a", tmp_path / "none", NotFound),
        ("a", tmp_path, AdapterInvalid),
    ):
        with pytest.raises(error):
            client(answer).add(name, path)


def test_strange_answers_are_errors() -> None:
    for response in (
        httpx.Response(404, json={"error": {"message": "no"}}),
        httpx.Response(200, text="hello"),
        httpx.Response(200, json=[]),
    ):
        with pytest.raises(SymphonyError):
            client(lambda _, r=response: r).show("a")  # type: ignore[misc]

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(PeerUnavailable, match="http://house cannot be reached"):
        client(refuse).all()


def test_nothing_shown_moves_the_cursor() -> None:
    assert "\x1b" not in "".join(lines_of(RECORD))
    assert any("everybody" in line for line in lines_of(RECORD))


def test_offers_are_parsed_and_the_kvstore_may_read_them(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a=b")
    offer = parse_offer(f"fox={folder}", tmp_path)
    assert offer == Offer("fox", folder)
    for wrong in ("fox", "=x", f"a b={folder}", f"fox={tmp_path}/none"):
        with pytest.raises(ConfigError, match="--adapter"):
            parse_offer(wrong, tmp_path)
    deployment = DeploymentOptions(data_dir=tmp_path, adapters=(offer,))
    plan = plan_deployment(deployment, 1, {"SYMPHONY_ADAPTER_DIRS": '["/srv"]'})
    (kvstore,) = [child for child in plan.services if child.service == "kvstore"]
    assert json.loads(kvstore.environment["SYMPHONY_ADAPTER_DIRS"]) == ["/srv", str(folder)]


def test_an_adapter_of_ours_needs_no_folder(tmp_path: Path) -> None:
    """It is told apart from a typing mistake and from one of another model, and brings its own."""
    offers = [parse_offer(name, tmp_path) for name in ("vowels", "pirate", "digits")]
    assert [each.base for each in offers] == ["symphony-demo", "smollm2-135m", "symphony-demo"]
    assert models_for(offers) == ("demo", "smollm2-135m")
    assert models_for([Offer("digits", tmp_path)]) == (), "one of the user's own"
    with pytest.raises(ConfigError, match=r"--adapter digit: .*NAME=DIR.*pirate.*digits.*vowels"):
        parse_offer("digit", tmp_path)
    for served, words in (
        (
            ["smollm2-135m"],
            "vowels: it is for --model demo, and this deployment serves smollm2-135m",
        ),
        ([], "no model is loaded here"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_offers(offers, served)
    check_offers(offers, ["minilm", "smollm2-135m", "symphony-demo"])
    check_offers([Offer("digits", tmp_path)], [])


def test_what_is_made_is_there_before_the_deployment_is(tmp_path: Path) -> None:
    models = tmp_path / "models"
    demo = make_demo_model(models / "symphony-demo")
    (offer,) = offers = [parse_offer("digits", tmp_path)]
    make_offers(offers, ["Qwen/Qwen3-0.6B", str(demo)])
    assert offer.folder.is_relative_to(models) and check(offer.folder, str(demo))["warnings"] == []
    assert {each.name for each in KNOWN.values() if each.is_made} == {*MADE}


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["digit"], "give NAME=DIR, or one of"),
        (
            ["digits", "--model", "smollm2-135m"],
            "it is for --model demo, and this deployment serves",
        ),
        (["pirate", "--model", "demo"], "it is for --model smollm2-135m"),
        (["digits", "--emulate", "zero"], "no model is loaded here"),
    ],
)
def test_another_one_is_refused_before_anything_starts(
    words: list[str], refused: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    deployment = ["up", "--port", "0", "--data-dir", str(data_dir)]
    done = CliRunner().invoke(app, [*deployment, "--adapter", *words])
    assert done.exit_code == 1 and refused in done.stderr
    assert not list(data_dir.glob("*"))


def test_a_base_is_known_without_its_weights(tmp_path: Path) -> None:
    base = make_demo_model(tmp_path / "demo")
    loaded = load_model(str(base), "cpu", "auto", "plain")
    card = base_card(str(base))
    assert card == loaded.lora
    for weights in base.glob("*.safetensors"):
        weights.unlink()
    assert base_card(str(base)) == card
    folder = tmp_path / "fox"
    write_any(folder, modules_of(card), Recipe(rank=4))
    checked = check(folder, str(base))
    assert checked["lora_rank"] == 4
    assert checked["image_bytes"] == card.num_layers * checked["layer_bytes"]
    runner = CliRunner()
    words = ["adapters", "check", str(folder), "--base", str(base)]
    assert runner.invoke(app, words).stdout.startswith("it can be served\n")
    made = json.loads(runner.invoke(app, [*words, "--json"]).stdout)
    assert made["adapter_hash"] == checked["adapter_hash"]
    change_config(folder, use_dora=True)
    refused = runner.invoke(app, words)
    assert refused.exit_code == 1 and refused.stderr.startswith("symphony: use_dora")
    with pytest.raises(ConfigError, match="--base"):
        base_card(str(tmp_path / "fox"))
