"""An adapter's image holds its weights, in the model's dtype, or nobody gets it."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from loadtest.adapters import Recipe, modules_of, write_adapter
from shared.adapters import image, values
from shared.adapters.check import check_adapter
from shared.adapters.image import AdapterDamaged, build_image
from shared.adapters.layout import layout_image
from shared.adapters.source import AdapterLimits
from shared.adapters.tensors import ELEMENT_BYTES as ELEMENT
from shared.adapters.tensors import TensorEntry
from shared.adapters.values import convert, read_tensors
from shared.wire.messages import LoraCard, LoraTarget
from tests.unit.shared.adapters.adapter_files import (
    ELEMENT_BYTES,
    small_adapter,
    small_card,
    unpack,
)

LIMITS = AdapterLimits()
TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
INTEGERS = {4: torch.int32, 2: torch.int16}
DTYPES = st.sampled_from(sorted(ELEMENT_BYTES))
SOURCES = st.sampled_from(sorted(TORCH))


def bits_of(values: torch.Tensor) -> np.ndarray[Any, Any]:
    """As they lie in files."""
    integers: np.ndarray[Any, Any] = values.view(INTEGERS[values.element_size()]).numpy()
    return integers.view(f"u{values.element_size()}")


@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
@pytest.mark.parametrize("source", TORCH)
def test_values_are_rounded_as_torch_rounds_them(source: str, dtype: str) -> None:
    if source == "F32":  # every half way and what is beside it, small and large
        highs = torch.arange(0x10000, dtype=torch.int64).repeat_interleave(5)
        lows = torch.tensor([0, 0x7FFF, 0x8000, 0x8001, 0x1000]).repeat(0x10000)
        given = ((highs << 16 | lows) - (1 << 31)).int().view(torch.float32)
    else:
        given = torch.arange(-(1 << 15), 1 << 15).short().view(TORCH[source])
    expected = given.to(getattr(torch, dtype))
    fits = expected.isfinite()
    found = convert(bits_of(given[fits]), source, dtype)
    np.testing.assert_array_equal(found, bits_of(expected[fits]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[LoraCard, Recipe]:
    """Pages so small that tiles are cut, ranks that differ by layer, targets that layers lack."""
    dtype = draw(DTYPES)
    sizes = st.integers(1, 70)
    num_layers = draw(st.integers(1, 4))
    targets = [
        LoraTarget(name=f"mlp.t{at}", num_in=draw(sizes), num_out=draw(sizes))
        for at in range(draw(st.integers(1, 3)))
    ]
    outer = [LoraTarget(name="head", num_in=draw(sizes), num_out=draw(st.integers(1, 400)))]
    card = LoraCard(
        layers_path="model.layers", num_layers=num_layers, element_bytes=ELEMENT_BYTES[dtype],
        dtype=dtype, page_bytes=64 * draw(st.integers(2, 20)), targets=targets,
        outer=outer if draw(st.booleans()) else [],
    )  # fmt: skip
    names = draw(st.lists(st.sampled_from(modules_of(card)), min_size=1, unique=True))
    recipe = Recipe(
        seed=draw(st.integers(0, 3)),
        rank=draw(st.integers(1, 9)),
        targets=[each.name for each in names],
        rank_pattern={each.name: draw(st.integers(1, 9)) for each in names if draw(st.booleans())},
        alpha_pattern={names[0].name: 3.3},
        is_rslora=draw(st.booleans()),
        dtype=draw(SOURCES),
    )
    return card, recipe


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_an_image_holds_what_the_files_hold(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[LoraCard, Recipe]
) -> None:
    card, recipe = case
    folder = write_adapter(tmp_path_factory.mktemp("adapter"), modules_of(card), recipe)
    checked = check_adapter(folder, card, LIMITS)
    layout = layout_image(card, checked.ranks)
    pages = build_image(folder, card, layout, card.dtype, checked.adapter_hash)
    tensors = load_file(folder / "adapter_model.safetensors")
    num_cells = 0
    for number, each in enumerate(layout.targets):
        is_outer = number >= len(card.targets)
        for layer in range(card.num_layers):
            name = (
                each.target.name if is_outer else f"{card.layers_path}.{layer}.{each.target.name}"
            )
            a, b, scale = unpack(pages, card, layout, layer, number, card.dtype)
            assert np.isfinite(a).all() and np.isfinite(b).all()
            found = {
                kind: tensors.get(f"base_model.model.{name}.lora_{kind}.weight") for kind in "AB"
            }
            if found["A"] is None or found["B"] is None:
                assert not a.any() and not b.any() and scale == 0
                continue
            rank = len(found["A"])
            expected = {kind: each.to(getattr(torch, card.dtype)).float().numpy()
                        for kind, each in found.items() if each is not None}  # fmt: skip
            np.testing.assert_array_equal(a[:rank], expected["A"])
            np.testing.assert_array_equal(b[:, :rank], expected["B"])
            assert not a[rank:].any() and not b[:, rank:].any()
            alpha = 3.3 if name == next(iter(recipe.alpha_pattern)) else recipe.alpha
            divisor = rank**0.5 if recipe.is_rslora else rank
            assert scale == pytest.approx(alpha / divisor)
            if not is_outer or layer == 0:
                num_cells += int(np.count_nonzero(a) + np.count_nonzero(b))
    headers = pages[:, 0, : 4 * len(layout.targets)].copy()
    pages[:, 0, : 4 * len(layout.targets)] = 0
    element = f"u{card.element_bytes}"
    assert np.count_nonzero(pages.view(element)) == num_cells, "something lies beside the tiles"
    assert headers.any()


@given(
    parts=st.lists(st.tuples(SOURCES, st.integers(0, 40), st.booleans()), min_size=1, max_size=12),
    chunk_bytes=st.integers(1, 400),
)
@settings(deadline=None)
def test_tensors_are_read_whole_however_many_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[str, int, bool]],
    chunk_bytes: int,
) -> None:
    raw = np.random.default_rng(0).bytes(8192)
    entries, place = [], 3
    for number, (dtype, size, is_asked) in enumerate(parts):
        num_bytes = size * ELEMENT[dtype]
        if is_asked:
            entries.append(TensorEntry(f"t{number}", dtype, (size,), place, num_bytes))
        place += num_bytes
    path = tmp_path_factory.mktemp("tensors") / "file"
    path.write_bytes(raw[:place])
    with pytest.MonkeyPatch.context() as patch, path.open("rb") as file:
        patch.setattr(values, "CHUNK_BYTES", chunk_bytes)
        found = {
            each: bits.tobytes() for each, bits in read_tensors(file.fileno(), reversed(entries))
        }
    assert found == {each: raw[each.begin : each.begin + each.num_bytes] for each in entries}


def damage(folder: Path, how: str) -> None:
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    raw = weights.read_bytes()
    if how == "a byte":
        weights.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    elif how == "cut":
        weights.write_bytes(raw[:-4])
    elif how == "gone":
        weights.unlink()
    elif how == "header":
        weights.write_bytes(raw[:8] + b"{" * 99 + raw[107:])
    elif how == "scale":
        config.write_text(config.read_text().replace('"lora_alpha": 16', '"lora_alpha": 17'))
    else:
        config.write_text("{")


@pytest.mark.parametrize("how", ["a byte", "cut", "gone", "header", "scale", "config"])
def test_files_that_are_no_longer_those_that_were_checked(tmp_path: Path, how: str) -> None:
    card = small_card()
    small_adapter(tmp_path, card)
    checked = check_adapter(tmp_path, card, LIMITS)
    layout = layout_image(card, checked.ranks)
    damage(tmp_path, how)
    with pytest.raises(AdapterDamaged, match=checked.adapter_hash) as caught:
        build_image(tmp_path, card, layout, "float32", checked.adapter_hash)
    assert (caught.value.code, caught.value.http_status) == ("adapter_damaged", 503)


def test_a_file_that_is_cut_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = small_card()
    small_adapter(tmp_path, card)
    checked = check_adapter(tmp_path, card, LIMITS)
    layout = layout_image(card, checked.ranks)

    def cut(*arguments: Any) -> Any:
        os.truncate(tmp_path / "adapter_model.safetensors", 3000)
        return convert(*arguments)

    monkeypatch.setattr(values, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(image, "convert", cut)
    with pytest.raises(AdapterDamaged, match="lora_"):
        build_image(tmp_path, card, layout, "float32", checked.adapter_hash)


def test_another_adapters_files_with_larger_ranks(tmp_path: Path) -> None:
    card = small_card()
    small_adapter(tmp_path, card, rank=4)
    checked = check_adapter(tmp_path, card, LIMITS)
    layout = layout_image(card, checked.ranks)
    small_adapter(tmp_path, card, rank=5)
    with pytest.raises(AdapterDamaged, match="rank 5"):
        build_image(tmp_path, card, layout, "float32", checked.adapter_hash)
