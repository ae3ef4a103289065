"""A family is served only where small models of it are computed as transformers computes them."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig

from kernels.paged_attention import AttentionShape, paged_attention
from services.worker.device.base.step import LayerProbe, StepContext, running, running_step
from services.worker.device.decoder import attention
from services.worker.device.decoder.attention import UnsupportedModelError
from services.worker.device.model import load_model
from services.worker.device.verify import check as check_module
from services.worker.device.verify import twins, verify_family
from services.worker.device.verify.check import check
from services.worker.device.verify.cut import cut_candidates
from services.worker.device.verify.record import Checked, Records, default_folder, key_of
from tests.unit.worker.device.test_torch_executor import save_model

SMALL = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 200}
DECODERS = {"num_hidden_layers": 2, "num_key_value_heads": 2, **SMALL}

LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0,
    "original_max_position_embeddings": 128,
    "short_factor": [1.0] * 8, "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with yarn": ("llama", {**DECODERS, "rope_parameters": YARN}),
    "sliding layers": ("gemma2", {**DECODERS, "head_dim": 16}),
    "experts": ("qwen3_moe", {**DECODERS, "num_experts": 4, "moe_intermediate_size": 32}),
    "learned positions": ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4}),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a recurrent state": (
        "falcon_mamba",
        {"hidden_size": 64, "num_hidden_layers": 2},
        "it keeps a recurrent state for each sequence",
    ),
    "latent attention": ("deepseek_v3", {}, "multi-head latent attention"),
    "a mask of its own": ("doge", DECODERS, "layer 0 brings its own attention mask"),
    "two attentions in a layer": ("diffllama", DECODERS, "calls attention twice in one pass"),
    "an encoder": ("bert", SMALL, "its config says that it is an encoder"),
    "alibi": ("mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2}, "mpt .* uses alibi, a bias"),
    "code of its own": (
        "falcon",
        {**SMALL, "num_hidden_layers": 2},
        "falcon .* computes attention in classes of its own",
    ),
    "looking ahead": (
        "gemma3_text",
        {**DECODERS, "head_dim": 16, "use_bidirectional_attention": True},
        "its attention looks ahead",
    ),
    "sinks": (
        "gpt_oss",
        {**DECODERS, "num_local_experts": 4, "head_dim": 16},
        r"attention sinks \(s_aux\)",
    ),
}


def checked(config: PreTrainedConfig) -> Checked:
    return check(config, cut_candidates(config), "fast", is_compiled=False)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_held_right(name: str) -> None:
    kind, options = RIGHT[name]
    found = checked(AutoConfig.for_model(kind, **options))
    assert found.family == kind and found.cut == "all"
    assert len(found.ways) == 5
    assert found.num_parameters < 2e6


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_is_refused_by_name(name: str) -> None:
    kind, options, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        checked(AutoConfig.for_model(kind, **options))
    assert caught.value.message.startswith(kind)


def test_a_refused_model_is_not_loaded(tmp_path: Path) -> None:
    save_model(tmp_path, "diffllama", num_hidden_layers=2)
    (tmp_path / "model.safetensors").unlink()  # it is not even looked at
    with pytest.raises(UnsupportedModelError, match=r"diffllama .* twice in one pass"):
        load_model(str(tmp_path), "cpu", "auto")


BROKEN_KIND = AutoConfig.for_model(
    "mistral", **DECODERS, head_dim=16, sliding_window=100, max_position_embeddings=512
)


def _wider(shape: AttentionShape) -> AttentionShape:
    return replace(shape, window=shape.window + 1)


def _boundless(shape: AttentionShape) -> AttentionShape:
    return replace(shape, window=0)


def _colder(shape: AttentionShape) -> AttentionShape:
    return replace(shape, scale=shape.scale * 1.01)


@pytest.mark.parametrize("change", [_wider, _boundless, _colder])
def test_attention_that_is_a_little_off_is_seen(
    change: Callable[[AttentionShape], AttentionShape], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(query: Any, pool: Any, layer: int, batch: Any, shape: AttentionShape) -> Any:
        return paged_attention(query, pool, layer, batch, change(shape))

    monkeypatch.setattr(attention, "paged_attention", attend)
    with pytest.raises(UnsupportedModelError, match=r"mistral .*: a whole prompt differs"):
        checked(BROKEN_KIND)


def test_history_that_is_lost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the first block of each prompt are overwritten behind a pass."""

    def attend(query: Any, pool: Any, layer: int, batch: Any, shape: AttentionShape) -> Any:
        out = paged_attention(query, pool, layer, batch, shape)
        pool[batch.page_tables[layer, batch.slots[0], 0], 0] += 0.1
        return out

    monkeypatch.setattr(attention, "paged_attention", attend)
    with pytest.raises(UnsupportedModelError, match="decoding differs"):
        checked(AutoConfig.for_model("llama", **DECODERS))


def _mixing(rows_min: int) -> Callable[[PreTrainedConfig, Any], Any]:
    """Models in which every token sees a little of the mean of all tokens of its step."""

    def mix(module: Any, args: Any, hidden: torch.Tensor) -> torch.Tensor:
        step = running_step()
        is_mixed = isinstance(step, StepContext) and step.batch.num_seqs >= rows_min
        return hidden + 0.05 * hidden.mean(1, keepdim=True) if is_mixed else hidden

    def make(config: PreTrainedConfig, like: Any) -> Any:
        model = plain_ours(config, like)
        model.get_input_embeddings().register_forward_hook(mix)
        return model

    plain_ours = twins.ours
    return make


def test_rows_that_change_each_other_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "ours", _mixing(rows_min=2))
    with pytest.raises(UnsupportedModelError, match="rows of other requests change its answer"):
        checked(BROKEN_KIND)
    monkeypatch.setattr(check_module, "AGREES", 1e9)
    checked(BROKEN_KIND)


def test_positions_that_begin_again_in_each_pass_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin_again(module: Any, args: Any, named: dict[str, Any]) -> Any:
        ids = named["position_ids"]
        return args, {**named, "position_ids": torch.arange(ids.shape[1])[None]}

    def make(config: PreTrainedConfig, like: Any) -> Any:
        model = plain_ours(config, like)
        model.register_forward_pre_hook(begin_again, with_kwargs=True)
        return model

    plain_ours = twins.ours
    monkeypatch.setattr(twins, "ours", make)
    with pytest.raises(UnsupportedModelError, match="decoding differs"):
        checked(BROKEN_KIND)  # rotary: a table of positions is looked up by row whatever is passed


class TestArguments:
    """What reaches attention is computed, or refused; never dropped."""

    @pytest.mark.parametrize(
        ("named", "reason"),
        [
            ({"attention_mask": torch.ones(1)}, "layer 0 brings its own attention mask"),
            ({"dropout": 0.1}, r"layer 0 asks for dropout=0.1"),
            ({"is_causal": False}, r"layer 0 passes is_causal=False"),
            ({"s_aux": torch.ones(4)}, r"layer 0 has attention sinks \(s_aux\)"),
            ({"position_bias": torch.ones(1)}, "layer 0 passes position_bias to attention"),
            ({"indices": torch.ones(1)}, "layer 0 passes indices to attention"),
            ({"cu_seq_lens_q": torch.ones(1)}, "layer 0 passes cu_seq_lens_q"),
        ],
    )
    @pytest.mark.parametrize("is_probed", [True, False])
    def test_that_change_the_result_are_refused(
        self, named: dict[str, Any], reason: str, is_probed: bool
    ) -> None:
        step = LayerProbe() if is_probed else no_step()
        with running(step), pytest.raises(UnsupportedModelError, match=reason):
            attend(**named)

    def test_that_change_nothing_are_taken(self) -> None:
        with running(LayerProbe()):
            attend(
                position_ids=torch.zeros(1, 3), use_cache=False, is_causal=True, s_aux=None,
                output_attentions=False, cu_seq_lens_q=None, cache_position=torch.zeros(3),
            )  # fmt: skip

    def test_a_layer_is_called_once_in_a_pass(self) -> None:
        with running(LayerProbe()):
            attend()
            attend(layer=1)
            with pytest.raises(UnsupportedModelError, match="layer 0 calls attention twice"):
                attend()
        with running(LayerProbe()):
            attend()

    def test_keys_are_those_of_the_new_tokens(self) -> None:
        with running(LayerProbe()), pytest.raises(UnsupportedModelError, match="3 queries to 5"):
            attend(num_keys=5)


def no_step() -> StepContext:
    """One in which nothing can be computed: to be refused comes first."""
    step = object.__new__(StepContext)
    step.attended = set()
    return step


def attend(layer: int = 0, num_keys: int = 3, **named: Any) -> None:
    module = torch.nn.Module()
    module.layer_idx = layer  # type: ignore[assignment]
    query, key = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, num_keys, 8)
    attention._attend(module, query, key, key, **{"attention_mask": None, **named})


class TestRecords:
    CONFIG = AutoConfig.for_model("llama", **DECODERS)

    def test_what_was_right_is_not_checked_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = verify_family(self.CONFIG, folder=tmp_path)
        monkeypatch.setattr(check_module, "check", never)
        assert verify_family(self.CONFIG, folder=tmp_path) == first

    @pytest.mark.parametrize(
        "option", [{"num_key_value_heads": 4}, {"rope_parameters": YARN}, {"attention_bias": True}]
    )
    def test_another_config_is_checked(self, option: dict[str, Any], tmp_path: Path) -> None:
        other = AutoConfig.for_model("llama", **{**DECODERS, **option})
        assert key(other) != key(self.CONFIG)

    def test_what_a_model_does_not_depend_on_changes_no_key(self) -> None:
        other = AutoConfig.for_model("llama", **DECODERS, dtype="bfloat16")
        other.name_or_path = "/models/other"
        other.vocab_size = 32000  # which is cut
        assert key(other) == key(self.CONFIG)

    def test_a_damaged_record_is_checked_again(self, tmp_path: Path) -> None:
        records = Records(tmp_path)
        records.put("a", CHECKED)
        assert records.get("a") == CHECKED
        whole = (tmp_path / "a.json").read_bytes()
        for damaged in (
            whole[:-9],
            b"",
            b"[]",
            b"\xff",
            whole.replace(b'"key": "a"', b'"key": "b"'),
        ):
            (tmp_path / "a.json").write_bytes(damaged)
            assert records.get("a") is None

    def test_there_are_never_more_than_so_many(self, tmp_path: Path) -> None:
        records = Records(tmp_path, records_max=3)
        for number in range(5):
            records.put(str(number), CHECKED)
            os.utime(tmp_path / f"{number}.json", ns=(number, number))
        assert {path.stem for path in tmp_path.iterdir()} == {"2", "3", "4"}

    def test_a_folder_that_takes_nothing_costs_a_check(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        records = Records(tmp_path / "file")
        records.put("a", CHECKED)
        assert records.get("a") is None

    def test_a_user_without_a_home_keeps_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_home() -> Path:
            raise RuntimeError

        monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
        assert default_folder() == Path("/cache/symphony/verified")
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", no_home)
        records = Records(default_folder())
        records.put("a", CHECKED)
        assert records.get("a") is None

    def test_what_is_refused_is_not_remembered(self, tmp_path: Path) -> None:
        for _ in range(2):
            with pytest.raises(UnsupportedModelError):
                verify_family(AutoConfig.for_model("diffllama", **DECODERS), folder=tmp_path)
        assert not list(tmp_path.iterdir())


CHECKED = Checked(family="a", cut="all", ways=["b"], num_parameters=1, worst=0.0, took_s=0.0)


def key(config: PreTrainedConfig) -> str:
    return key_of((each.identity() for each in cut_candidates(config)), "fast")


def never(*_: object, **__: object) -> Checked:
    raise AssertionError("it was remembered")
