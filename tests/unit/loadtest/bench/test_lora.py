"""`bench lora` on the demo model: all its figures, and none where our tokens are not PEFT's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.adapters import modules_in
from loadtest.bench import lora
from loadtest.bench.lora.agreement import WrongTokens
from loadtest.bench.lora.made import MadeAdapter, make_adapters, written_in_turn
from loadtest.in_process_engine import InProcessEngine, Submitted
from services.worker.device.model import load_model
from services.worker.models.demo_model import make_demo_model
from shared.adapters.check import check_adapter
from shared.adapters.source import AdapterLimits
from shared.errors import InvalidRequest
from shared.wire.messages import AdapterRef, LoraCard, LoraTarget

TINY = [
    "--context", "70", "--steps", "2", "--prompt", "70", "--rounds", "1", "--memory-mb", "16"
]  # fmt: skip
CARD = LoraCard(
    layers_path="model.layers",
    num_layers=2,
    element_bytes=4,
    page_bytes=1 << 14,
    dtype="float32",
    targets=[
        LoraTarget(name="self_attn.q_proj", num_in=32, num_out=32),
        LoraTarget(name="self_attn.k_proj", num_in=32, num_out=16),
        LoraTarget(name="self_attn.v_proj", num_in=32, num_out=16),
        LoraTarget(name="mlp.up_proj", num_in=32, num_out=64),
    ],
    outer=[LoraTarget(name="lm_head", num_in=32, num_out=100)],
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_demo_model(tmp_path_factory.mktemp("models") / "demo"))


def test_every_figure_is_there(demo: str) -> None:
    figures = lora.run(
        ["--model", demo, "--batch", "1,5", "--popularity", "skewed", "--ranks", "4,8", *TINY]
    )
    # The base and three adapters, two prompts each, of six tokens.
    assert figures["tokens_equal"] == 4 * 2 * 6
    ms = ("backbone", "distinct", "identical", "skewed", "peft_one_adapter", "peft_mixed")
    by_batch = [f"{name}_ms" for name in ms] + [
        "ratio", "bound_ratio", "share_of_bound", "identical_ratio", "skewed_ratio",
        "over_peft_one_adapter", "over_peft_mixed",
    ]  # fmt: skip
    for key in by_batch:
        assert figures[key].keys() == {"batch_1", "batch_5"}
        assert all(value > 0 for value in figures[key].values()), key
    assert figures["prefill_ms"].keys() == {"backbone", "adapter"}
    assert figures["prefill_ratio"] > 0 and figures["stream_gb_per_s"] > 0
    ratio, bound = figures["ratio"]["batch_5"], figures["bound_ratio"]["batch_5"]
    assert figures["share_of_bound"]["batch_5"] == pytest.approx(ratio / bound, abs=0.01)


def test_other_weights_than_pefts_are_refused(demo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(*given: Any) -> list[MadeAdapter]:
        first, second = make_adapters(*given)
        return [replace(first, folder=second.folder), replace(second, folder=first.folder)]

    monkeypatch.setattr(lora, "make_adapters", swapped)
    with pytest.raises(WrongTokens, match="on adapter a0 our tokens are off PEFT's by"):
        lora.run(["--model", demo, "--batch", "2", *TINY])


def test_turns_that_pass_their_adapter_by_are_refused(
    demo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = InProcessEngine.submit

    def on_base(
        self: InProcessEngine, tokens: list[int], max_tokens: int, adapter: AdapterRef | None = None
    ) -> Submitted:
        return submit(self, tokens, max_tokens, adapter if len(tokens) == 2 else None)

    monkeypatch.setattr(InProcessEngine, "submit", on_base)
    with pytest.raises(WrongTokens, match="on adapter a0 our tokens"):
        lora.run(["--model", demo, "--batch", "1", *TINY])


def test_adapters_that_change_nothing_are_refused(
    demo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.bench.lora.made.STRENGTH", 0.0)
    with pytest.raises(WrongTokens, match="adapter a0 says what the base model says"):
        lora.run(["--model", demo, "--batch", "1", *TINY])


def test_adapters_have_the_wanted_targets_and_ranks_in_turn(tmp_path: Path) -> None:
    made = make_adapters(tmp_path, CARD, "qv", [4, 6], 3)
    assert [each.ref.lora_rank for each in made] == [4, 6, 4]
    assert made[1].ref.ranks == {"self_attn.q_proj": 6, "self_attn.v_proj": 6}
    assert made[1].weight_bytes == 2 * 6 * (32 + 32 + 32 + 16) * 4
    assert all(each.folder == tmp_path / each.ref.adapter_hash for each in made)
    (every,) = make_adapters(tmp_path, CARD, "all", [5], 1)
    assert every.ref.ranks.keys() == {each.name for each in CARD.targets}, "the head is not one"


def test_other_servers_get_the_same_adapters(demo: str, tmp_path: Path) -> None:
    card = load_model(demo, "cpu", "auto").lora
    assert card is not None
    ours = make_adapters(tmp_path / "ours", card, "qkvo", [4], 2)
    modules = modules_in(Path(demo))
    theirs = list(written_in_turn(tmp_path / "theirs", modules, "float32", "qkvo", [4], range(2)))
    hashes = [check_adapter(each, card, AdapterLimits()).adapter_hash for each in theirs]
    assert hashes == [each.ref.adapter_hash for each in ours]
    assert [each.name for each in theirs] == [each.ref.name for each in ours]


def test_wrong_options_are_told(demo: str) -> None:
    for options, told in (
        (["--popularity", "zipf"], "--popularity zipf: use some of distinct"),
        (["--batch", "1,0"], "--batch 1,0: use numbers from 1 on"),
        (["--ranks", "x"], "--ranks x: use numbers with commas"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            lora.run(["--model", demo, *options])
