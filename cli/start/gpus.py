"""Which GPU each worker gets."""

import shutil
import subprocess
from collections.abc import Mapping

from shared.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
PATIENCE_S = 20.0  # for the driver's tool


def gpus_of_workers(
    num_workers: int, environment: Mapping[str, str], num_hosts: int = 1
) -> list[str]:
    """What each worker is to see of the GPUs that there are; nothing where there are none, or the
    CPU is asked for.

    Args:
        num_workers: of each host.

    Raises:
        ConfigError: there are fewer GPUs than workers.
    """
    if environment.get("SYMPHONY_DEVICE") == "cpu":
        return []
    gpus = visible_gpus(environment)
    if not gpus:
        return []
    num_in_all = num_hosts * num_workers
    if num_in_all > len(gpus):
        there_are = "there is 1 GPU" if len(gpus) == 1 else f"there are {len(gpus)} GPUs"
        hosts = "" if num_hosts == 1 else f"--hosts {num_hosts} "
        raise ConfigError(
            f"{hosts}--workers {num_workers}: {there_are}, and each worker needs one of its own "
            "(SYMPHONY_DEVICE=cpu runs them on the CPU)"
        )
    return gpus[:num_in_all]


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that a process of ours could use, as `CUDA_VISIBLE_DEVICES` names them."""
    if (chosen := environment.get(VISIBLE)) is not None:
        return [gpu.strip() for gpu in chosen.split(",") if gpu.strip()]
    tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if tool is None:
        return []
    try:
        listed = subprocess.run(
            [tool, "--query-gpu=uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []  # a driver that does not answer: workers will say so
    return listed.stdout.split()
