"""What can be known of the Triton kernels on a machine without a GPU: that they compute the right
thing in Triton's interpreter, and that Triton's compiler makes code for Hopper of them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernels.paged_attention import AttentionShape, DeviceBatch
from kernels.sgmv import Site
from kernels.sgmv.device import make_device_segments, make_device_tables
from tests.kernels.interpreter import IS_INTERPRETED

pytest.importorskip("triton", reason="Triton is not installed")
HERE = Path(__file__).parent
FILES = (
    "test_cuda_link.py", "test_page_copy.py", "test_page_sums.py", "test_paged_attention_triton.py",
    "test_pass_triton.py", "test_pointwise.py", "test_sgmv_triton.py",
)  # fmt: skip
pytestmark = pytest.mark.skipif(IS_INTERPRETED, reason="this process interprets kernels itself")
SHARED_MEMORY_BYTES = 227 * 1024


@pytest.mark.parametrize("length", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_agree_with_the_reference_in_the_interpreter(length: str) -> None:
    """In a process of its own: Triton asks for TRITON_INTERPRET when it is imported, and nothing
    else here may find its kernels interpreted."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "TRITON_"))
    }
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    files = [str(HERE / name) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", length]
    run = subprocess.run(
        [*command, *files], env=environment, cwd=HERE.parents[1], capture_output=True, text=True,
        timeout=850, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed and int(passed[1]) > (15 if length == "slow" else 150)


class Recorder:
    """Stands in for a kernel: notes its launches and runs none."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.launches: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def note(*args: Any, **kwargs: Any) -> None:
            assert all(isinstance(size, int) and size > 0 for size in grid)
            self.launches.append(dict(zip(self.kernel.arg_names, args, strict=False)) | kwargs)

        return note


def record_launches(
    kernels: ModuleType, names: Sequence[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Recorder]:
    """Have a module's kernels of these names noted instead of launched, and compiled anew."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    recorders = {name: Recorder(getattr(kernels, name)) for name in names}
    for name, recorder in recorders.items():
        monkeypatch.setattr(kernels, name, recorder)
    return recorders


def compile_for_hopper(kernel: Any, launch: dict[str, Any]) -> Any:
    """What Triton's compiler makes of a launch, for compute capability 9.0; needs no device."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds: dict[Any, str] = {torch.bfloat16: "*bf16", torch.float16: "*fp16"}
    kinds |= {
        torch.float32: "*fp32",
        torch.int32: "*i32",
        torch.int64: "*i64",
        torch.int16: "*i16",
        float: "fp32",
        int: "i32",
    }
    signature, constants, aligned = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = launch.pop(parameter.name)
        of_tensor = isinstance(value, torch.Tensor)
        if parameter.is_constexpr:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = kinds[value.dtype if of_tensor else type(value)]
        # What a real launch finds out: tensors begin at 16 bytes, strides are multiples of 16.
        if of_tensor or parameter.name.endswith("stride"):
            aligned[index,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    # What is left in the launch is the compiler's: warps, stages.
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launch)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "shape"),
    [
        (torch.bfloat16, 128, AttentionShape(0.1)),
        (torch.float16, 80, AttentionShape(0.1, window=100, softcap=30.0)),
        (torch.bfloat16, 256, AttentionShape(0.1, softcap=30.0)),
        (torch.float32, 64, AttentionShape(0.1)),
    ],
    ids=["bf16", "fp16-window-cap", "bf16-256-cap", "fp32"],
)
def test_kernels_compile_for_hopper(
    dtype: torch.dtype,
    head_dim: int,
    shape: AttentionShape,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from kernels.paged_attention import triton as kernels

    names = ("_attend_kernel", "_combine_kernel", "_store_kernel")
    recorders = record_launches(kernels, names, monkeypatch, tmp_path)
    monkeypatch.setattr(kernels, "_is_interpreted", lambda: False)
    numbers = torch.zeros(4, dtype=torch.int32)
    batch = DeviceBatch(numbers, numbers[:3], numbers[:3], 2, 40, 8000)
    query = torch.zeros((42, 8, head_dim), dtype=dtype)
    pool = torch.zeros((1, 2, 2, 64, head_dim), dtype=dtype)
    tables = torch.zeros((1, 1, 1), dtype=torch.int32)
    for is_packed in (False, True):
        asked = replace(batch, is_packed=is_packed)
        kernels.paged_attention_triton(query, pool, tables, 0, asked, shape, query.clone(), 132)
    kernels.store_kv(query[:4, :2], query[:4, :2], pool, numbers, numbers)

    made = {
        name: [compile_for_hopper(recorder.kernel, launch) for launch in recorder.launches]
        for name, recorder in recorders.items()
    }
    assert [len(made[name]) for name in names] == [3, 3, 1], "decodes, chunks and both: split"
    for compiled in (each for several in made.values() for each in several):
        assert compiled.metadata.shared <= SHARED_MEMORY_BYTES
        assert "tf32" not in compiled.asm["ptx"], "float32 keeps its precision"
    for_decodes, *for_others = (compiled.asm["ptx"] for compiled in made["_attend_kernel"])
    assert all("cp.async" in ptx for ptx in (for_decodes, *for_others)), "copies run ahead"
    if dtype != torch.float32:
        assert "mma.sync" in for_decodes, "the matrix units work"
        assert all("wgmma" in ptx for ptx in for_others), "the matrix units work"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_kernels_for_adapters_compile_for_hopper(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kernels.sgmv import triton as kernels

    names = ("_shrink_kernel", "_expand_kernel")
    recorders = record_launches(kernels, names, monkeypatch, tmp_path)
    monkeypatch.setattr(kernels, "_is_interpreted", lambda: False)
    tables = make_device_tables(
        2, 7, lines_max=32, blocks_max=4, tiles_max=8, rank_max=64, device="cpu"
    )
    segments = make_device_segments(32, "cpu")
    x, pool = torch.zeros((32, 4096), dtype=dtype), torch.zeros((1, 1 << 16), dtype=dtype)
    site = Site((0, 1, 2), (0, 4096, 5120), (4096, 1024, 1024))
    y = torch.zeros((32, 6144), dtype=dtype)
    kernels.add_lora_triton(x, y, pool, 0, site, segments, tables)

    for name, recorder in recorders.items():
        (launch,) = recorder.launches
        compiled = compile_for_hopper(recorder.kernel, launch)
        ptx = compiled.asm["ptx"]
        assert compiled.metadata.shared <= SHARED_MEMORY_BYTES
        spilled = [int(number) for number in re.findall(r"depot0\[(\d+)\]", ptx)]
        assert not spilled, "everything is in registers"
        if dtype == torch.float32:
            assert "tf32" not in ptx, "float32 keeps its precision"
        elif name == "_shrink_kernel":
            assert "mma.sync" in ptx or "wgmma" in ptx, "the matrix units work"
        else:
            assert "tf32" in ptx, "x A keeps its precision there too"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_kernels_between_products_compile_for_hopper(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kernels.pointwise import GELU_TANH, SILU, Heads, Norm, Rotary, Slots
    from kernels.pointwise import triton as kernels

    names = (
        "_norm_kernel", "_rotate_kernel", "_gate_kernel", "_add_norm_kernel", "_rotate_store_kernel"
    )  # fmt: skip
    recorders = record_launches(kernels, names, monkeypatch, tmp_path)
    rows = torch.zeros((1, 3, 4096), dtype=dtype)
    kernels.rms_norm(rows, rows[0, 0], 1e-5, 0.0)
    heads = rows.view(1, 3, 32, 128).transpose(1, 2)
    for rotary in (128, 96):
        angles = torch.zeros((1, 3, rotary), dtype=dtype)
        kernels.rotate(heads, heads[:, :8], angles, angles)
    for activation in (SILU, GELU_TANH):
        kernels.gate(rows, rows, activation)
    norm = Norm(rows[0, 0], 1e-5, 0.0)
    for after, before in ((None, norm), (norm, norm), (norm, None)):
        kernels.add_norm(rows[0], rows[0], 0.5, after, before)
    numbers = torch.zeros(3, dtype=torch.int32)
    pool = torch.zeros((1, 2, 8, 64, 128), dtype=dtype)
    of_head = Norm(rows[0, 0, :128], 1e-5, 0.0)
    product = torch.zeros((3, 6144), dtype=dtype)
    parts = product.view(3, 48, 128).split([32, 8, 8], 1)
    for head_norm in (None, of_head):
        turns = Rotary(rows[0, :, :128], rows[0, :, :128], numbers.long())
        slots = Slots(numbers, numbers)
        kernels.rotate_store(Heads(*parts), pool, slots, turns, head_norm, head_norm)

    for recorder in recorders.values():
        assert recorder.launches
        for launch in recorder.launches:
            ptx = compile_for_hopper(recorder.kernel, launch).asm["ptx"]
            assert "ld.global.v4" in ptx, "16 bytes at once"
            assert not re.findall(r"depot0\[(\d+)\]", ptx), "everything is in registers"


def test_kernels_for_checksums_compile_for_hopper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kernels.page_sums import triton as kernels

    names = ("_mix_kernel", "_chain_kernel")
    recorders = record_launches(kernels, names, monkeypatch, tmp_path)
    pages, numbers = torch.zeros((2, 1 << 18), dtype=torch.uint8), torch.zeros(2, dtype=torch.int32)
    kernels.page_sums(pages, numbers, torch.zeros(2, dtype=torch.int64))

    for recorder in recorders.values():
        (launch,) = recorder.launches
        ptx = compile_for_hopper(recorder.kernel, launch).asm["ptx"]
        assert not re.findall(r"depot0\[(\d+)\]", ptx), "everything is in registers"
