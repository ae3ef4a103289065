"""Keeps torch out of the frontend, which needs transformers for tokenizers only."""

import os
import sys


def without_torch() -> None:
    """Call before transformers is imported. It then finds no torch, as in the control plane's
    container, where none is installed. Importing it would take a second of a start and 200 MB.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # "there is no such module"
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # about a missing torch
