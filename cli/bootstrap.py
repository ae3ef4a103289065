"""Makes the environment that a command runs in, and becomes that command.

Help is shown from a file as long as nothing is installed, so that it comes at once.

Runs on a bare Python: standard library only. Does nothing but two small reads when everything is
there: nothing of ours is imported before there is something to install. ``SYMPHONY_VENV`` names the
environment (default ``.venv`` beside this checkout), ``SYMPHONY_TORCH_SPEC`` the torch to install,
in pip's words.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.installing import Installer

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
HELP_FILE = Path(__file__).with_name("help.txt")
STAMP = "symphony-installed.json"
USAGE_STATUS = 2  # of a command line without a command
GROUPS = {"adapters"}  # commands of commands
EXTRAS = {
    "test": {"worker", "test"},
    "bench": {"worker", "loadtest"},
    "loadtest": {"loadtest"},
    "top": {"top"},
    "docs": {"docs"},
    "demo": {"demo"},
}
TORCH = "torch==2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP_INDEX = "https://pypi.org/pypi/pip/json"
DOWNLOAD_TIMEOUT_S = 30


class BootstrapError(Exception):
    """One line for the user."""


def needed_extras(argv: Sequence[str]) -> set[str]:
    """Optional dependencies of a command line.

    >>> sorted(needed_extras(["test"]))
    ['test', 'worker']
    >>> needed_extras(["up", "--emulate", "zero"])
    set()
    """
    command = next((word for word in argv if not word.startswith("-")), "")
    if wanted_help(argv) is not None:
        return set()
    if command == "up":
        options = {word.partition("=")[0] for word in argv}
        no_workers = "--no-worker" in options or _option(argv, "--workers") == "0"
        return set() if "--emulate" in options or no_workers else {"worker"}
    if command in GROUPS:
        return {"worker"} if "check" in argv[1:2] else set()
    return set(EXTRAS.get(command, set()))


def wanted_help(argv: Sequence[str]) -> str | None:
    """The command whose help is asked for, "" for that of all, None for none.

    >>> wanted_help(["up", "--help"])
    'up'
    >>> wanted_help(["bench", "resume", "--help"])  # the benchmark's own, which we do not have
    """
    words = list(takewhile(lambda word: word != "--", argv))
    if not argv:
        return ""
    if not {"--help", "-h"} & set(words):
        return None
    command = words[0] if not words[0].startswith("-") else ""
    if command == "bench" and any(not word.startswith("-") for word in words[1:]):
        return None
    if command in GROUPS and words[1:] and not words[1].startswith("-"):
        return f"{command} {words[1]}"
    return command


def help_of(command: str) -> str | None:
    """What the file says of a command; None: it knows none of this name."""
    sections = re.split(r"^(?=Usage: )", HELP_FILE.read_text(), flags=re.MULTILINE)
    start = f"Usage: symphony {command}".rstrip() + " ["
    return next((text.rstrip() for text in sections if text.startswith(start)), None)


def _option(argv: Sequence[str], name: str) -> str | None:
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word == name:
            return following
        if word.startswith(name + "="):
            return word.partition("=")[2]
    return None


def missing_extras(stamp: Path, digest: str, needed: set[str]) -> set[str] | None:
    """Extras to install beside the base, or None when nothing is missing. What was there before is
    kept up to date too.
    """
    try:
        record = json.loads(stamp.read_text())
        installed, known = set(record["extras"]), record["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        return needed
    if known == digest and needed <= installed:
        return None
    return needed | installed


def project_digest() -> str:
    """Changes when what is to be installed does, or where from."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + str(ROOT).encode())
    if CONSTRAINTS.exists():
        digest.update(CONSTRAINTS.read_bytes())
    return digest.hexdigest()


class Environment:
    """A virtual environment and what installs into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.log_path = folder / "install.log"

    def ensure(self) -> None:
        """Make it, unless it is there and whole."""
        if self._runs("import pip"):
            return
        is_ours = not self.folder.exists() or (self.folder / "pyvenv.cfg").exists()
        if not is_ours and any(self.folder.iterdir()):
            raise BootstrapError(f"{self.folder}: no environment, and not empty: not touched")
        say(f"making {self.folder} with Python {sys.version.split()[0]}")
        from cli.installing import show_step, ticking

        with ticking(lambda: f"making {self.folder}"):
            self._make()
        show_step("")

    def _make(self) -> None:
        # Without pip: Debian keeps ensurepip in a package of its own (python3-venv).
        command = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not self._runs("import sys"):
            raise BootstrapError(
                f"cannot make {self.folder}: {_last_line(done.stdout + done.stderr)}"
            )
        if self._pip_from_ensurepip() or self._pip_from_outside() or self._pip_from_index():
            return
        raise BootstrapError(
            "cannot get pip: install it (Debian: apt install python3-venv) and start again"
        )

    def install(self, extras: set[str]) -> None:
        """Install the project with `extras`, showing what is happening."""
        installer = self._begin(["control plane", *sorted(extras)], extras)
        target = f"{ROOT}[{','.join(sorted(extras))}]" if extras else str(ROOT)
        if CONSTRAINTS.exists():
            if installer.install("--constraint", str(CONSTRAINTS), "--editable", target):
                return
            say("not all of the tested versions can be had: installing what there is")
        self._must(installer.install("--editable", target))

    def add(self, extras: set[str], requirements: Sequence[str]) -> None:
        """Install what belongs to `extras` beside a project that is there."""
        self._must(self._begin(sorted(extras), extras).install(*requirements))

    def _begin(self, what: Sequence[str], extras: set[str]) -> "Installer":
        """An installer, once torch is there if `extras` need it."""
        say(f"installing: {', '.join(what)} (a minute or two, this once)")
        self.log_path.unlink(missing_ok=True)
        from cli.installing import Installer

        # Where Python is to write no compiled module down, they are there before; tests write them.
        compiles = sys.dont_write_bytecode and "test" not in extras
        installer = Installer(self.python, self.log_path, ROOT, compiles=compiles)
        if "worker" in extras and not self._runs("import torch"):
            self.install_torch(installer)
        return installer

    def install_torch(self, installer: "Installer") -> None:
        """A build that fits the machine: without a GPU the CPU's, which is a tenth of the size.

        Its dependencies come with the project's.
        """
        if spec := os.environ.get("SYMPHONY_TORCH_SPEC"):
            self._must(installer.pip(*spec.split()))
            return
        install = installer.install
        if has_gpu() or sys.platform != "linux":
            self._must(install("--no-deps", TORCH))
            return
        # A wheel that this machine has (PIP_FIND_LINKS), or PyTorch's own index.
        local = ("--no-index", "--no-deps", TORCH)
        cpu = ("--no-deps", "--index-url", TORCH_CPU_INDEX, f"{TORCH}+cpu")
        if not (install(*local) or install(*cpu, once=True)):
            say("no CPU build of torch is reachable: installing the default one (several GB)")
            self._must(install("--no-deps", TORCH))

    def _must(self, is_installed: bool) -> None:
        if not is_installed:
            lines = self.log_path.read_text(errors="replace").splitlines()
            why = next((line for line in reversed(lines) if line.startswith("ERROR")), "pip failed")
            raise BootstrapError(f"{why.removeprefix('ERROR: ')} (log: {self.log_path})")

    def _pip_from_ensurepip(self) -> bool:
        return self._run(str(self.python), "-m", "ensurepip", "--default-pip")

    def _pip_from_outside(self) -> bool:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        return self._run(*pip, "install", "--quiet", "pip")

    def _pip_from_index(self) -> bool:
        """A pip wheel can be run as it is, to install pip."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                wheel = _download_pip(Path(folder))
                return self._run(str(self.python), f"{wheel}/pip", "install", "--quiet", "pip")
        except (OSError, ValueError, LookupError):
            return False

    def _runs(self, code: str) -> bool:
        return self.python.exists() and self._run(str(self.python), "-c", code)

    @staticmethod
    def _run(*command: str) -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _download_pip(folder: Path) -> Path:
    with urllib.request.urlopen(PIP_INDEX, timeout=DOWNLOAD_TIMEOUT_S) as response:
        files = json.load(response)["urls"]
    file = next(file for file in files if file["packagetype"] == "bdist_wheel")
    wheel = folder / str(file["filename"])
    address = urllib.parse.urljoin(PIP_INDEX, file["url"])  # a mirror may give a relative one
    with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT_S) as response:
        data = response.read()
    if hashlib.sha256(data).hexdigest() != file["digests"]["sha256"]:
        raise ValueError("the download is damaged")
    wheel.write_bytes(data)
    return wheel


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU that is of use."""
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None


def say(text: str) -> None:
    """One line for the user, away from what the command itself prints."""
    print(f"symphony: {text}", file=sys.stderr, flush=True)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no reason given")


@contextmanager
def locked() -> Iterator[None]:
    """Two launchers at once: the second waits, and then finds everything there."""
    with (ROOT / "pyproject.toml").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare(argv: Sequence[str]) -> Path | None:
    """The Python to run `argv` with, everything that it needs installed; None for help that needs
    none, because nothing is installed yet.

    Raises:
        BootstrapError: something could not be installed.
    """
    folder = Path(os.environ.get("SYMPHONY_VENV") or ROOT / ".venv").absolute()
    environment = Environment(folder)
    stamp, digest, needed = folder / STAMP, project_digest(), needed_extras(argv)

    def missing() -> set[str] | None:
        return missing_extras(stamp, digest, needed) if environment.python.exists() else needed

    if missing() is None:
        return environment.python
    if (command := wanted_help(argv)) is not None and help_of(command) is not None:
        return None
    sys.path.insert(0, str(ROOT))  # `-P` keeps a script's folder from it
    try:
        with locked():
            if (extras := missing()) is not None:
                environment.ensure()
                environment.install(extras)
                stamp.write_text(json.dumps({"digest": digest, "extras": sorted(extras)}))
    except OSError as error:
        raise BootstrapError(f"{error.filename or folder}: {error.strerror}") from None
    return environment.python


def main() -> None:
    """Prepare, then become the command."""
    try:
        python = prepare(sys.argv[1:])
    except BootstrapError as error:
        say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    if python is None:
        command = wanted_help(sys.argv[1:])
        assert command is not None
        print(help_of(command), file=sys.stdout if sys.argv[1:] else sys.stderr)
        sys.exit(0 if sys.argv[1:] else USAGE_STATUS)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    line = [str(python), "-P", "-m", "cli.main", *sys.argv[1:]]
    if sys.argv[1:2] == ["up"] and wanted_help(sys.argv[1:]) is None:
        print("symphony: starting", flush=True)  # to read our modules takes seconds
    os.execve(python, line, {**os.environ, "PYTHONPATH": path})


if __name__ == "__main__":
    main()
