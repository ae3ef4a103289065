"""Which GPU each worker gets."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import takewhile

from shared.errors import ConfigError
from shared.runtime.memory import Memory

VISIBLE = "CUDA_VISIBLE_DEVICES"
PATIENCE_S = 20.0  # for the driver's tool
KILLED_S = 1.0
OUTPUT_BYTES_MAX = 1 << 20
# Of `nvidia-smi -L`; MIG instances, also as older drivers name them, stand below their GPU.
_LISTED = re.compile(r"\(UUID: ((?:GPU|MIG)-[0-9A-Za-z/-]+)\)")
_CHOICE = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")


class GpusUnknown(ConfigError):
    """The driver does not say which GPUs there are."""


def gpus_of_workers(
    num_workers: int, environment: Mapping[str, str], num_hosts: int = 1
) -> list[str]:
    """What each worker is to see of the GPUs that there are; nothing where there are none, or the
    CPU is asked for.

    Args:
        num_workers: of each host.

    Raises:
        ConfigError: there are fewer GPUs than workers, or which there are is not known.
    """
    if environment.get("SYMPHONY_DEVICE") == "cpu":
        return []
    num_in_all = num_hosts * num_workers
    try:
        gpus = visible_gpus(environment)
    except GpusUnknown:
        if num_in_all > 1:  # they would all use the first
            raise
        return []
    if not gpus:
        return []
    if num_in_all > len(gpus):
        there_are = "there is 1 GPU" if len(gpus) == 1 else f"there are {len(gpus)} GPUs"
        hosts = "" if num_hosts == 1 else f"--hosts {num_hosts} "
        raise ConfigError(
            f"{hosts}--workers {num_workers}: {there_are}, and each worker needs one of its own "
            "(SYMPHONY_DEVICE=cpu runs them on the CPU)"
        )
    return gpus[:num_in_all]


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that a process of ours could use, as `CUDA_VISIBLE_DEVICES` names them: of one that
    is divided its MIG instances.

    Raises:
        GpusUnknown: the driver's tool does not answer.
    """
    if (chosen := environment.get(VISIBLE)) is not None:
        return _chosen(chosen)
    tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
    listed = [] if tool is None else _listed(tool)
    if listed is None:
        raise GpusUnknown(
            f"{tool} does not answer within {PATIENCE_S:g} s: which GPUs there are is not known "
            f"({VISIBLE} says which to use, SYMPHONY_DEVICE=cpu that none is)"
        )
    return listed


def free_memory(gpu: str) -> Memory | None:
    """What a GPU has now; None: the driver does not say, as of one that is divided.

    Args:
        gpu: as `visible_gpus` names it.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None or gpu.startswith("MIG"):
        return None
    fields = "--query-gpu=memory.total,memory.free"
    said = _output([tool, fields, "--format=csv,noheader,nounits", "-i", gpu]) or ""
    numbers = re.fullmatch(r"(\d+), (\d+)", said.strip())
    return Memory(int(numbers[1]) << 20, int(numbers[2]) << 20) if numbers else None


def _chosen(text: str) -> list[str]:
    """What CUDA makes of the user's choice: nothing behind what is no GPU's number or id."""
    return list(takewhile(_CHOICE.fullmatch, (each.strip() for each in text.split(","))))


@cache
def _listed(tool: str) -> list[str] | None:
    """Asked once: a driver that is not kept loaded takes seconds each time. None: no answer."""
    listing = _output([tool, "-L"])
    if listing is None:
        return None
    gpus: list[str] = []
    for (gpu,) in map(re.Match.groups, _LISTED.finditer(listing)):
        if gpu.startswith("MIG") and gpus and gpus[-1].startswith("GPU"):
            gpus.pop()  # as a whole it cannot be used
        gpus.append(gpu)
    return gpus


def _output(command: list[str]) -> str | None:
    """What a command says, nothing if it fails; None: it does not end. One that hangs in the kernel
    cannot be killed, and is left behind.
    """
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL
            )
        except OSError:
            return ""
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_S)
            return None
        said.seek(0)
        return "" if status else said.read(OUTPUT_BYTES_MAX).decode(errors="replace")
