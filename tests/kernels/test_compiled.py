"""Whether kernels are compiled already, by files alone."""

import os
from pathlib import Path

import pytest

from kernels.compiled import FOLDERS, KERNELS, is_compiled


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As after a first start: a kept index beside each source with kernels."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    for folder in FOLDERS:
        kept = tmp_path / folder / "__pycache__"
        kept.mkdir(parents=True)
        (tmp_path / folder / "select.py").write_text("nothing compiled\n")
        (tmp_path / folder / "cpu.py").write_text("@njit(cache=True)\n")
        (kept / "cpu._add-3.py311.nbi").write_text("")
    return tmp_path


def test_what_was_kept_since_the_source_changed_is_compiled(kernels: Path) -> None:
    assert is_compiled(kernels)
    source = kernels / "sgmv" / "cpu.py"
    kept = kernels / "sgmv" / "__pycache__" / "cpu._add-3.py311.nbi"
    os.utime(kept, (1, 1))
    assert not is_compiled(kernels), "the source is newer"
    os.utime(source, (1, 1))
    assert is_compiled(kernels)
    kept.unlink()
    assert not is_compiled(kernels)


def test_elsewhere_it_is_not_looked_for(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kernels / "sgmv" / "__pycache__" / "cpu._add-3.py311.nbi").unlink()
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/elsewhere")
    assert is_compiled(kernels)


def test_every_folder_with_kernels_is_known() -> None:
    with_kernels = {
        source.parent.name
        for source in KERNELS.glob("*/*.py")
        if "cache=True" in source.read_text() and source.parent.name != "compiled"
    }
    assert with_kernels == {*FOLDERS, "kv_int8"}, "int8 pages are an option"
