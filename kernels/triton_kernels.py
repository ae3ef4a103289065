"""A package's Triton kernels: imported where they are first used, since only a GPU pays for it."""

from functools import cache
from importlib import import_module
from types import ModuleType

import torch


def triton_kernels(package: str, device: torch.device) -> ModuleType | None:
    """``kernels.{package}.triton``, for a GPU; None where Triton is not installed."""
    return _imported(package) if device.type == "cuda" else None


@cache
def _imported(package: str) -> ModuleType | None:
    try:
        return import_module(f"kernels.{package}.triton")
    except ImportError:
        return None
