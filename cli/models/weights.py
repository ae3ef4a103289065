"""Models' weights, looked at before anything starts."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from cli.base.children import python_path
from cli.models.prepare import Say, find_model
from cli.models.progress import busy_bar
from shared.errors import ConfigError

CHECK = 1  # part of a mark's name: count it up when the check changes
MARKS_MAX = 100
WEIGHTS = ("*.safetensors", "*.bin")


def check_weights(models: Sequence[str], kept: Path, say: Say) -> None:
    """See that workers will find all weights of models, and no others. What was seen to be whole
    is not looked at again until a file of it changes.

    Args:
        models: folders and hub ids. Those that are not on this machine are left to the workers;
            those below `kept` were checked when they were made.

    Raises:
        ConfigError: a tensor is missing, left over, or of another shape; names it.
    """
    folders = {each: find_model(each, kept) for each in models}
    looked_at = [
        folder
        for folder in folders.values()
        if folder is not None and not folder.is_relative_to(kept.resolve()) and _has_weights(folder)
    ]
    if not looked_at:
        return
    mark = kept / "checked" / _digest(models, looked_at)
    if mark.exists():
        return
    say(f"checking the weights of {', '.join(folder.name for folder in looked_at)}")
    here = [each for each, folder in folders.items() if folder is not None]
    with busy_bar("checking weights"):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "services.worker.check_models", *here],
            env={**os.environ, "PYTHONPATH": python_path(os.environ)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ConfigError(f"--model: {lines[-1]}")
    mark.parent.mkdir(parents=True, exist_ok=True)
    for old in sorted(mark.parent.iterdir(), key=_age)[: -(MARKS_MAX - 1)]:
        old.unlink(missing_ok=True)
    mark.touch()


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in WEIGHTS)


def _digest(models: Sequence[str], folders: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    tasks = os.environ.get("SYMPHONY_TASKS", "")
    digest.update(f"{CHECK}:{version('transformers')}:{tasks}:{sorted(models)}".encode())
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if path.is_file():
                stat = path.stat()
                digest.update(f"{path}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns
