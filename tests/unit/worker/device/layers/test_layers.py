"""What is taken for what, and what is left alone."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from services.worker.device import verify
from services.worker.device.layers import fast
from services.worker.device.layers.gated import GatedMlp, fast_mlp
from services.worker.device.layers.merged import Merged, Sibling, joined
from services.worker.device.layers.norms import FastRmsNorm, fast_norm
from services.worker.device.layers.packed import ROWS_MAX, PackedLinear, can_pack
from services.worker.device.model import load_model
from tests.unit.worker.device.layers.test_architectures import make_model
from tests.unit.worker.device.test_torch_executor import save_model


def linear(width: int, out: int, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(width * out)
    return nn.Linear(width, out, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("rows", [1, ROWS_MAX, ROWS_MAX + 1, 3 * ROWS_MAX - 1])
@pytest.mark.parametrize("out", [24, 100])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_linears(rows: int, out: int, bias: bool) -> None:
    """On both sides of the number of rows at which products are cut, narrow and wide."""
    parts = [linear(48, out, bias=bias), linear(48, 8)]
    x = torch.randn(1, rows, 48)
    want = torch.cat([part(x) for part in parts], -1)
    torch.testing.assert_close(PackedLinear(*parts)(x), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(PackedLinear(*parts)(x[0]), want[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("biases", [(False, False), (True, False), (True, True)])
def test_joined_linears(biases: tuple[bool, bool]) -> None:
    """What siblings are on a GPU."""
    parts = [linear(48, out, bias=bias) for out, bias in zip((24, 8), biases, strict=True)]
    x = torch.randn(1, 5, 48)
    want = torch.cat([part(x) for part in parts], -1)
    product = joined(*parts)
    assert (product.bias is None) is not any(biases)
    torch.testing.assert_close(product(x), want, atol=1e-5, rtol=1e-5)


def test_packing_pays_for_bf16_with_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert can_pack(torch.bfloat16)
    assert not can_pack(torch.float32)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert not can_pack(torch.bfloat16)


def test_without_the_operation_linears_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not can_pack(torch.bfloat16)
    model = make_model("llama").to(torch.bfloat16)
    made = fast.make_fast(model)
    assert (made.packed, made.packed_bytes, made.norms) == (0, 0, 7)


def test_packed_weights_replace_plain_ones() -> None:
    model = make_model("llama")
    total = sum(p.numel() * 4 for p in model.parameters())
    made = fast.make_fast(model, pack=True)
    left = sum(p.numel() * 4 for p in model.parameters())
    assert left == total - made.packed_bytes and made.copied_bytes == 0


def test_copies_of_weights_that_stay_have_a_limit() -> None:
    """An embedding that is the head's weight, too."""
    head_bytes = 200 * 64 * 4
    for limit, is_packed in ((head_bytes, True), (head_bytes - 1, False)):
        model = make_model("gemma")
        made = fast.make_fast(model, pack=True, copies_bytes_max=limit)
        assert isinstance(model.lm_head, PackedLinear) is is_packed
        assert made.copied_bytes == (head_bytes if is_packed else 0)
        assert made.packed == 21 + is_packed
        assert model.get_input_embeddings().weight.shape == (200, 64)


class Block(nn.Module):
    """Three siblings, and how they are called."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.q_proj, self.k_proj, self.v_proj = (linear(16, n) for n in (16, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = x.clone() if self.how == "other" else x
        if self.how == "twice":
            self.v_proj(x)
        k = self.k_proj(input=x) if self.how == "named" else self.k_proj(x)
        return torch.cat([self.q_proj(x), k, self.v_proj(other)], -1)


class Blocks(nn.Module):
    """As much of a model as is asked for."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.block = Block(how)
        self.requires_grad_(False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, ids: torch.Tensor, **_: Any) -> Any:
        return type("Output", (), {"logits": self.block(self.embedding(ids))})


@pytest.mark.parametrize(("how", "merged"), [("same", 3), ("other", 0), ("twice", 0), ("named", 0)])
def test_only_siblings_with_one_input_are_merged(how: str, merged: int) -> None:
    """An equal tensor is not enough: it must be the very same."""
    model = Blocks(how)
    before = fast.probe(model)
    if how == "named":
        model.block.k_proj.__class__ = type("Other", (nn.Linear,), {})
    made = fast.make_fast(model, pack=True)
    assert made.merged == merged
    torch.testing.assert_close(fast.probe(model), before, atol=1e-5, rtol=1e-5)


def test_linears_that_share_a_weight_are_not_merged() -> None:
    model = Blocks("same")
    model.block.k_proj.weight = model.block.v_proj.weight
    made = fast.make_fast(model, pack=True, copies_bytes_max=1 << 20)
    assert (made.merged, made.packed, made.copied_bytes) == (0, 3, 2 * 16 * 8 * 4)


def test_a_product_is_handed_out_once_and_for_its_input_only() -> None:
    parts = [linear(16, 4), linear(16, 12)]
    calls: list[torch.Tensor] = []
    product = PackedLinear(*parts)
    product.register_forward_pre_hook(lambda _, args: calls.append(args[0]))
    merged = Merged(product, [4, 12])
    first, second = (Sibling(merged, index, "p", part) for index, part in enumerate(parts))
    x, y = torch.randn(1, 3, 16), torch.randn(1, 3, 16)
    for sibling, part, tensor in (
        (first, parts[0], x),
        (second, parts[1], y),  # not the first one's input
        (first, parts[0], y),
        (second, parts[1], x),  # x's product is gone: made anew
        (second, parts[1], x),  # and again, for it was handed out
        (first, parts[0], x),
    ):
        torch.testing.assert_close(sibling(tensor), part(tensor), atol=1e-5, rtol=1e-5)
    assert [each is x for each in calls] == [True, False, True, True]
    assert merged._input is None and not any(p is not None for p in merged._pieces)


class Norm(nn.Module):
    """A norm with a twist."""

    def __init__(self, twist: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))
        self.twist = twist
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.twist == "mean":
            x = x - x.mean(-1, keepdim=True)
        eps = 2 * self.eps if self.twist == "eps" else self.eps
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        if self.twist == "raises":
            raise RuntimeError("not today")
        if self.twist == "clamp":
            y = y.clamp(-2, 2)
        return y * (1 + self.weight) if self.twist == "offset" else y * self.weight


@pytest.mark.parametrize(
    ("twist", "offset"),
    [("", 0.0), ("offset", 1.0), ("mean", None), ("eps", None), ("clamp", None), ("raises", None)],
)
def test_norms_are_taken_for_what_they_compute(twist: str, offset: float | None) -> None:
    found = fast_norm(Norm(twist))
    assert (None if found is None else found.offset) == offset


def test_norms_with_hooks_and_other_modules_are_left_alone() -> None:
    norm = Norm("")
    norm.register_forward_hook(lambda *_: None)
    assert fast_norm(norm) is None
    assert fast_norm(nn.LayerNorm(32)) is None
    assert fast_norm(linear(8, 8)) is None
    assert fast_norm(nn.RMSNorm(32, eps=1e-5)) is not None


class Mlp(nn.Module):
    """A gated MLP with a twist."""

    def __init__(self, twist: str) -> None:
        super().__init__()
        self.twist = twist
        self.gate_proj, self.up_proj = linear(16, 32), linear(16, 32)
        self.down_proj = linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.twist == "swapped":
            gate, up = up, gate
        if self.twist == "clamp":
            gate = gate.clamp(max=7)
        if self.twist == "tanh":
            gate = F.gelu(gate, approximate="tanh")
        elif self.twist == "gelu":
            gate = F.gelu(gate)
        else:
            gate = gate.relu() if self.twist == "relu" else F.silu(gate)
        out: torch.Tensor = self.down_proj(gate * up)
        return 0.5 * out if self.twist == "half" else out


@pytest.mark.parametrize("twist", ["", "tanh", "gelu", "relu", "swapped", "clamp", "half"])
def test_mlps_are_taken_for_what_they_compute(twist: str) -> None:
    mlp = Mlp(twist)
    found = fast_mlp(mlp)
    assert (found is not None) is (twist in ("", "tanh"))
    if isinstance(found, GatedMlp):
        x = torch.randn(1, 4, 16)
        torch.testing.assert_close(found(x), mlp(x), atol=1e-5, rtol=1e-5)


def test_plain_layers_can_be_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_model(tmp_path, "llama")
    caplog.set_level(logging.INFO)
    plain = load_model(str(tmp_path), "cpu", "bfloat16", "plain").module
    assert not any(isinstance(each, FastRmsNorm) for each in plain.modules())
    assert "fast layers" not in caplog.text
    module = load_model(str(tmp_path), "cpu", "bfloat16").module
    assert any(isinstance(each, FastRmsNorm) for each in module.modules())
    assert [vars(each)["norms"] for each in caplog.records if each.msg == "fast layers"] == [7]


@pytest.mark.parametrize("fault", ["reads a weight", "computes something else"])
def test_a_model_that_does_not_bear_it_stays_plain(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(tmp_path, "llama")
    want = fast.probe(load_model(str(tmp_path), "cpu", "auto", "plain").module)
    broken = {
        "reads a weight": lambda self, x: self.weight,
        "computes something else": lambda self, x: 1.01 * self._product(x),
    }
    monkeypatch.setattr(verify, "default_folder", lambda: None)  # what is broken is not recorded
    monkeypatch.setattr(PackedLinear, "forward", broken[fault])
    monkeypatch.setattr(fast, "can_pack", lambda _: True)
    module = load_model(str(tmp_path), "cpu", "auto").module
    assert torch.equal(fast.probe(module), want)
    assert "none used" in caplog.text
