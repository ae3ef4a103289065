"""`symphony doctor`: what is installed, what would keep the deployment from starting, what adapters
may target, and whether a model is computed as transformers computes it.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from cli.base.called import hint
from cli.base.children import find_nats_server, find_redis_server
from cli.base.reporting import out
from cli.base.runfile import is_locked, read_run_state
from cli.inspection.model_report import (
    describe_family,
    describe_files,
    describe_kv,
    describe_memory,
    describe_targets,
)
from cli.models.catalog import DEFAULT
from cli.models.prepare import check_model
from cli.start.hosts import SHARED_MEMORY
from cli.start.plan import check_data_dir, check_port
from services.kvstore.config import KvstoreConfig
from services.kvstore.core.base.tier_sizes import TierSizes
from services.kvstore.room import decide_sizes
from services.worker.config import WorkerConfig
from shared.errors import ConfigError
from shared.runtime.config import load_config

GIB = 1024**3
SHARED_MEMORY_BYTES_MIN = 64 * 1024**2
PACKAGES = ("fastapi", "lmdb", "nats-py", "nkeys", "redis", "tokenizers", "transformers", "uvloop")


Look = Callable[[str, Path, WorkerConfig], str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        is_fine: False only for what keeps the deployment from starting.
    """

    subject: str
    is_fine: bool
    text: str


def examine(
    data_dir: Path,
    describe_vllm: Callable[[], str],
    host: str = "127.0.0.1",
    port: int = 8080,
    models: Sequence[str] = (),
) -> list[Finding]:
    """Look at everything the deployment stands on.

    Args:
        describe_vllm: what workers on vLLM would run in; raises ConfigError.
        models: as `up --model` takes them; none: those that it serves without.
    """
    return [
        Finding(
            "python", sys.version_info >= (3, 11), f"{sys.version.split()[0]}, {sys.executable}"
        ),
        *(_package(name) for name in PACKAGES),
        _torch(),
        _binary("nats-server", find_nats_server),
        _binary("redis-server", find_redis_server),
        _data_dir(data_dir),
        _shared_memory(),
        _tiers(data_dir),
        _port(data_dir, host, port),
        _cpu(),
        _gpu(),
        *_served(models, data_dir, describe_vllm),
    ]


def show(findings: list[Finding], *, as_json: bool) -> None:
    """Print the findings."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
        return
    for finding in findings:
        mark = "[green]ok  [/green]" if finding.is_fine else "[red]FAIL[/red]"
        out.print(f"{mark} {finding.subject:<14} {finding.text}")


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, False, "not installed")


def _torch() -> Finding:
    if find_spec("torch") is None:
        return Finding("torch", True, "not installed: only emulated workers (`up` installs it)")
    return Finding("torch", True, metadata.version("torch"))


def _binary(name: str, find: Callable[[], str]) -> Finding:
    try:
        path = find()
        version = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (ConfigError, OSError, subprocess.SubprocessError) as error:
        return Finding(name, False, str(error))
    return Finding(name, True, f"{version.splitlines()[0]}, {path}")


def _data_dir(data_dir: Path) -> Finding:
    try:
        check_data_dir(data_dir)
    except ConfigError as error:
        return Finding("data folder", False, error.message)
    return Finding("data folder", True, f"{data_dir}, {_free(data_dir)}")


def _shared_memory() -> Finding:
    if not os.access(SHARED_MEMORY, os.W_OK):
        return Finding("shared memory", False, f"{SHARED_MEMORY} cannot be written to")
    is_enough = shutil.disk_usage(SHARED_MEMORY).free >= SHARED_MEMORY_BYTES_MIN
    hint = "" if is_enough else f"; needs {SHARED_MEMORY_BYTES_MIN // 1024**2} MiB"
    return Finding("shared memory", is_enough, f"{SHARED_MEMORY}, {_free(SHARED_MEMORY)}{hint}")


def _tiers(data_dir: Path) -> Finding:
    if is_locked(data_dir):
        return Finding("KV cache", True, f"`{hint('status')}` says what each tier holds")
    try:
        sizes = _sizes(data_dir)
    except ConfigError as error:
        return Finding("KV cache", False, error.message)
    memory, disk = sizes.arena_bytes / GIB, sizes.disk_bytes / GIB
    return Finding("KV cache", True, f"{memory:.1f} GiB of memory, {disk:.1f} GiB of disk")


def _sizes(data_dir: Path) -> TierSizes:
    """Of the tiers of a deployment of one host that would start now."""
    config = load_config(KvstoreConfig)
    return decide_sizes(
        config.model_copy(update={"data_dir": data_dir, "arena_dir": SHARED_MEMORY})
    )


def _port(data_dir: Path, host: str, port: int) -> Finding:
    if is_locked(data_dir):
        state = read_run_state(data_dir)
        return Finding("port", True, f"a deployment runs at {state.url if state else '?'}")
    try:
        check_port(host, port)
    except ConfigError as error:
        return Finding("port", True, f"{error.message}: give `up` another --port")
    return Finding("port", True, f"{port} is free")


def _cpu() -> Finding:
    page_bytes, num_pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    return Finding(
        "cpu", True, f"{os.cpu_count()} cores, {page_bytes * num_pages / GIB:.0f} GiB memory"
    )


def _gpu() -> Finding:
    if (tool := shutil.which("nvidia-smi")) is None:
        return Finding("gpu", True, "none: workers run on the CPU")
    try:
        listing = subprocess.run(
            [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"],
            capture_output=True, text=True, check=True, timeout=20,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("gpu", True, f"nvidia-smi fails: {error}")
    return Finding("gpu", True, "; ".join(listing.strip().splitlines()))


def _served(
    models: Sequence[str], data_dir: Path, describe_vllm: Callable[[], str]
) -> list[Finding]:
    """The engine, if it is not our own, and the models."""
    try:
        config = load_config(WorkerConfig)
    except ConfigError as error:
        return [Finding("adapters", False, error.message)]
    wanted = models or config.models or (DEFAULT,)
    looks: list[tuple[str, Look]] = [("files", describe_files), ("adapters", describe_targets)]
    if models:  # asked for: it may take some seconds
        looks[1:1] = [("memory", describe_memory)]
        looks += [("KV cache", partial(_held, data_dir)), ("model", describe_family)]
    engine: list[Finding] = []
    if config.engine == "vllm":
        engine = [_vllm(describe_vllm)]
        looks = [("files", describe_files), ("model", _left_to_vllm)]
    return engine + [
        _look(subject, look, source, data_dir / "models", config)
        for source in wanted
        for subject, look in looks
    ]


def _held(data_dir: Path, source: str, kept: Path, config: WorkerConfig) -> str:
    return describe_kv(source, kept, config, _sizes(data_dir))


def _vllm(describe: Callable[[], str]) -> Finding:
    try:
        return Finding("vllm", True, describe())
    except ConfigError as error:
        return Finding("vllm", False, error.message)


def _left_to_vllm(source: str, kept: Path, config: WorkerConfig) -> str:
    return "vLLM says at its start whether it can serve it"


def _look(subject: str, look: Look, source: str, kept: Path, config: WorkerConfig) -> Finding:
    try:
        check_model(source)
        text = look(source, kept, config)
    except ConfigError as error:
        return Finding(subject, False, error.message)
    on = "on " if subject == "adapters" else ""
    return Finding(subject, True, f"{on}{source}: {text}")


def _free(path: Path) -> str:
    return f"{shutil.disk_usage(path).free / GIB:.1f} GiB free"
