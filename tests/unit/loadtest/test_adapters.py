"""Adapters made from a seed. (That PEFT loads them: tests/unit/shared/adapters/test_peft.py.)"""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from loadtest import adapters
from loadtest.adapters import Module, Recipe, write_adapter

MODULES = [Module(f"model.layers.{at}.mlp.{end}", 8, 12) for at in (0, 1) for end in ("up", "down")]


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def test_the_same_recipe_gives_the_same_bytes(tmp_path: Path) -> None:
    one, again, other = (
        contents(write_adapter(tmp_path / name, MODULES, Recipe(seed=seed)))
        for name, seed in (("one", 1), ("again", 1), ("other", 2))
    )
    assert one == again != other


def test_what_it_adds_does_not_depend_on_rank_and_scale(tmp_path: Path) -> None:
    wide = [Module("model.layers.0.mlp.up", 512, 512)]
    inputs = np.random.default_rng(7).standard_normal((64, 512), np.float32)
    for rank, alpha, is_rslora in ((1, 16, False), (64, 1, True), (256, 300, False)):
        recipe = Recipe(rank=rank, alpha=alpha, is_rslora=is_rslora, strength=0.5)
        a, b = load_file(
            write_adapter(tmp_path, wide, recipe) / "adapter_model.safetensors"
        ).values()
        scale = alpha / (rank**0.5 if is_rslora else rank)
        added = inputs @ a.T @ b.T * scale
        assert 0.35 < added.std() < 0.65


def test_nothing_is_made_where_no_module_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="q_proj"):
        write_adapter(tmp_path / "none", MODULES, Recipe(targets=["q_proj"]))
    assert not (tmp_path / "none").exists()


def test_several_for_a_model_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    weights = {f"{each.name}.weight": np.ones((12, 8), np.float32) for each in MODULES}
    save_file(weights | {"lm_head.weight": np.ones((9, 8))}, model / "model.safetensors")
    command = f"adapters {tmp_path / 'made'} --model {model} --count 3 --ranks 2,4 --targets up"
    monkeypatch.setattr("sys.argv", command.split())
    adapters.main()
    folders = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [each.name for each in folders] == ["made-0-r2", "made-1-r4", "made-2-r2"]
    tensors = load_file(folders[1] / "adapter_model.safetensors")
    assert {name: each.shape for name, each in tensors.items()} == {
        f"base_model.model.model.layers.{at}.mlp.up.lora_{kind}.weight": shape
        for at in (0, 1)
        for kind, shape in (("A", (4, 8)), ("B", (12, 4)))
    }
