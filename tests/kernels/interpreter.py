"""Triton's interpreter in the place of a GPU.

Triton decides when a kernel is imported whether it is compiled or interpreted, for the whole
process. So in an ordinary test run its kernels need a CUDA device, and `test_triton_without_a_gpu`
runs their files once more in a process of its own, with TRITON_INTERPRET=1.
"""

import os
from typing import Any

import pytest

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
NEEDS_DEVICE = [] if IS_INTERPRETED else [pytest.mark.gpu]
gpu_only = pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter is no CUDA device")


def long(*values: Any) -> Any:
    """A case that takes the interpreter a second or more, while shorter ones have all that is in
    it: with it there, one of `pytest -m slow`."""
    return pytest.param(*values, marks=[pytest.mark.slow] if IS_INTERPRETED else [])
