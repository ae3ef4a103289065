"""Which families were held right, remembered from one start to the next.

Only what was right is kept, under a key of all that it depends on: what is not there, or cannot be
read, is checked again.
"""

import json
import logging
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

log = logging.getLogger(__name__)

RECORDS_MAX = 256
PACKAGES = ("transformers", "torch", "numpy", "numba")
SOURCES = ("services/worker/device", "services/worker/core/step.py", "kernels")
_ROOT = Path(__file__).parents[4]


class Checked(BaseModel):
    """What was checked of a family, and held.

    Attributes:
        cut: how much its config was cut, see `cut.Level`.
        ways: in which it was computed.
        worst: largest difference of a log-probability to transformers'.
        has_own_forward: computed by a forward of our own, see `forward`.
        took_s: time that the check took.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str
    cut: str
    ways: list[str]
    num_parameters: int
    worst: float
    took_s: float
    has_own_forward: bool = False


class Records:
    """A folder of them, a file each; the oldest go.

    A folder that cannot be read or written costs every start the time of a check, nothing else.

    Args:
        folder: None: nothing is kept.
    """

    def __init__(self, folder: Path | None, records_max: int = RECORDS_MAX) -> None:
        self._folder = folder
        self._records_max = records_max

    def get(self, key: str) -> Checked | None:
        """What was kept under this key."""
        if self._folder is None:
            return None
        try:
            kept = json.loads((self._folder / f"{key}.json").read_bytes())
            if kept["key"] == key:
                return Checked.model_validate(kept["checked"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            log.warning("a record of a verified model is not readable", extra={"error": str(error)})
        return None

    def put(self, key: str, checked: Checked) -> None:
        """Keep it, and no more than so many."""
        if self._folder is None:
            return
        content = {"key": key, "checked": checked.model_dump()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as file:
                json.dump(content, file)
            os.replace(file.name, self._folder / f"{key}.json")
            self._trim(self._folder)
        except OSError as error:
            log.warning("a verified model is not remembered", extra={"error": str(error)})

    def _trim(self, folder: Path) -> None:
        files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: -self._records_max]:
            with suppress(FileNotFoundError):
                path.unlink()


def default_folder() -> Path | None:
    """This user's, for all deployments; None: this user has no home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            return None
    return cache / "symphony" / "verified"


def key_of(configs: Iterable[dict[str, Any]], mode: str) -> str:
    """Of a check: its input, the code that runs in it, and the versions of what that uses.

    Args:
        configs: of the small models, in the order in which they are tried.
        mode: of layers and kernels.
    """
    digest = blake2b(digest_size=16)
    for config in configs:
        digest.update(json.dumps(config, sort_keys=True, default=repr).encode())
    digest.update(repr((mode, [_version(name) for name in PACKAGES], _cpu())).encode())
    for path in _sources():
        digest.update(f"{path.relative_to(_ROOT)}:{path.stat().st_size}:".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources() -> list[Path]:
    found: list[Path] = []
    for name in SOURCES:
        path = _ROOT / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    import torch

    return torch.backends.cpu.get_cpu_capability()
