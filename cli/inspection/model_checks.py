"""What is known of a model before a worker loads it: `up` refuses what cannot be served, and
`doctor` shows it.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from cli.base.children import python_path
from cli.base.progress import busy_bar
from cli.inspection.model_memory import check_memory
from cli.models.names import served_as
from cli.models.prepare import Say, find_model, is_folder
from services.worker.config import WorkerConfig
from services.worker.models.checkpoint import REFUSED, Checkpoint, check_checkpoint
from shared.errors import ConfigError

RECORDS = "checked"  # folder, beside the models
PACKAGES = ("safetensors", "torch", "transformers")
PATIENCE_S = 600.0


def check_models(
    sources: Sequence[str], kept: Path, config: WorkerConfig, num_workers: int, say: Say
) -> None:
    """See that workers could load these models, as far as they are on this machine.

    Args:
        sources: as `--model` takes them.
        kept: folder of fetched, converted and made models.
        config: of each of the workers.
        say: called with progress.

    Raises:
        ConfigError: files are missing, damaged or quantized, the engine does not compute such a
            model, or there is too little memory; says what to do.
    """
    found = [(each, folder) for each in sources if (folder := find_model(each, kept)) is not None]
    checkpoints = [checkpoint_of(source, folder, config) for source, folder in found]
    if config.engine == "vllm":  # it says the rest itself
        return
    check_memory(checkpoints, config, num_workers)
    for source, folder in found:
        # What was fetched by its hash, made or converted here has all that it should have.
        if is_folder(source):
            _check_loading(source, folder, kept, config, say)


def unservable(source: str, why: str) -> ConfigError:
    """A worker's refusal of a model, as the user is to see it."""
    named = why if why.startswith("cannot ") else f"{source} cannot be served: {why}"
    return ConfigError(named)


def checkpoint_of(source: str, folder: Path, config: WorkerConfig) -> Checkpoint:
    """What a model's files say of themselves.

    Raises:
        ConfigError: as `check_checkpoint`, of files that are not still to be fetched.
    """
    is_here = is_folder(source) or any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
    return check_checkpoint(
        str(folder), may_be_quantized=config.engine == "vllm", has_weights=is_here
    )


def _check_loading(source: str, folder: Path, kept: Path, config: WorkerConfig, say: Say) -> None:
    """Go through a load without reading weights, unless that was done with the same files.

    Raises:
        ConfigError: a worker would refuse the model.
    """
    if find_spec("torch") is None:
        return
    model_id = served_as(source)
    record = kept / RECORDS / hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    state = _state_of(folder, config)
    if record.is_file() and record.read_text() == state:
        return
    say(f"checking {model_id} (some seconds, once for these files)")
    environment = {
        **os.environ, "PYTHONPATH": python_path(os.environ), "SYMPHONY_DTYPE": config.dtype
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "services.worker.dry_load", model_id, str(folder)]
    try:
        with busy_bar(f"checking {model_id}"):
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                check=False, timeout=PATIENCE_S,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        say(f"{model_id} was not checked within {PATIENCE_S:g} s: its worker checks it again")
        return
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    if done.returncode == REFUSED:
        raise unservable(source, lines[-1])
    if done.returncode:  # of the check, not of the model
        say(f"{model_id} could not be checked ({lines[-1]}): its worker checks it again")
        return
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(state)


def _state_of(folder: Path, config: WorkerConfig) -> str:
    """All that the outcome goes by, but our own code: a worker checks again."""
    files = [
        (path.name, (stat := path.stat()).st_size, stat.st_mtime_ns)
        for path in sorted(folder.iterdir())
        if path.suffix in {".json", ".safetensors", ".bin"} and path.is_file()
    ]
    settings = (config.dtype, config.layers, config.device, sorted(config.tasks.items()))
    return json.dumps([files, settings, [metadata.version(name) for name in PACKAGES]])
