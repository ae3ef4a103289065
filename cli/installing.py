"""Installs packages into an environment: by uv, which takes a tenth of pip's time, else by pip.

uv reads nothing of pip's settings, so those of this machine (index, proxy, constraints) are passed
on to it. Where there is one that cannot be, where uv is not to be had, or where it fails, pip does
what it would have done. Standard library only: this runs before anything is installed.
"""

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from threading import Event, Thread

REDRAW_S = 1.0  # on a terminal
REPEAT_S = 4.0  # elsewhere
UV = "uv==0.13.9"
SHOWN = (
    "Collecting ", "Downloading ", "Installing ", "Building ", "Preparing ",  # pip
    "Resolved ", "Prepared ", "Installed ",  # uv, beside some of the same
)  # fmt: skip
SECTIONS = ("global", "install", ":env:")  # of pip's settings; a later one prevails
UV_OPTIONS = {
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
UV_VARIABLES = {  # indexes, too: they may have a password, and all can read a command line
    "index-url": "UV_INDEX_URL",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
}
PIP_ONCE = ("--retries", "0", "--timeout", "10")
UV_ONCE = {"UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "10"}
OF_NO_MATTER = {
    "break-system-packages", "cache-dir", "disable-pip-version-check", "no-color", "no-compile",
    "no-input", "no-python-version-warning", "no-warn-script-location", "progress-bar", "quiet",
    "require-virtualenv", "root-user-action", "verbose",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class UvSettings:
    """What uv is called with."""

    options: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def uv_settings(pip_config: str) -> UvSettings | None:
    """Settings of pip, as ``pip config list`` prints them, in uv's words; None where they have
    something that is not known here.

    >>> uv_settings("global.index-url='https://packages.example/simple'").variables
    {'UV_INDEX_URL': 'https://packages.example/simple'}
    >>> uv_settings("install.require-hashes='true'")
    """
    values: dict[str, str] = {}
    lines = [line.partition("=") for line in pip_config.splitlines() if "=" in line]
    for section in SECTIONS:
        for name, _, value in lines:
            where, _, key = name.rpartition(".")
            if where == section:
                try:
                    values[key] = str(ast.literal_eval(value))
                except (ValueError, SyntaxError):
                    return None
    settings = UvSettings()
    for key, value in values.items():
        if key in UV_OPTIONS:
            settings.options.extend(chain(*((UV_OPTIONS[key], each) for each in value.split())))
        elif key in UV_VARIABLES:
            settings.variables[UV_VARIABLES[key]] = value.replace("\n", " ")
        elif key not in OF_NO_MATTER:
            return None
    return settings


class Installer:
    """Installs into one environment, which has pip.

    Args:
        log_path: everything that they say is appended to it.
        compiles: whether every module is compiled now. Else each is when it is first imported, and
            most never are: half of the time to install.
    """

    def __init__(self, python: Path, log_path: Path, cwd: Path, *, compiles: bool) -> None:
        self._python = python
        self._log_path = log_path
        self._cwd = cwd
        self._pip_compiles = () if compiles else ("--no-compile",)
        self._uv_compiles = ("--compile-bytecode",) if compiles else ()

    def install(self, *arguments: str, once: bool = False) -> bool:
        """Install what these arguments say, which both must know; whether that succeeded. If
        `once`, a server that does not answer is not asked again.
        """
        is_done = self._uv is not None and self._by_uv(self._uv, arguments, once)
        return is_done or self.pip(*arguments, once=once)

    def pip(self, *arguments: str, once: bool = False) -> bool:
        """Install by pip, with any of its arguments; whether that succeeded."""
        command = [
            str(self._python), "-m", "pip", "install", "--no-input", "--progress-bar", "off",
            "--disable-pip-version-check", *self._pip_compiles, *(PIP_ONCE if once else ()),
            *arguments,
        ]  # fmt: skip
        return self._run(command, {})

    @cached_property
    def _uv(self) -> UvSettings | None:
        """With what to call uv, which is fetched; None: it cannot be used."""
        command = [str(self._python), "-m", "pip", "config", "list"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        settings = uv_settings(listed.stdout) if listed.returncode == 0 else None
        if settings is None or not self.pip("--quiet", "--no-deps", "--only-binary", ":all:", UV):
            return None
        return settings

    def _by_uv(self, settings: UvSettings, arguments: Sequence[str], once: bool) -> bool:
        command = [
            str(self._python.with_name("uv")), "pip", "install", "--python", str(self._python),
            "--no-progress", "--index-strategy", "unsafe-best-match",  # of all, as pip does
            *self._uv_compiles, *settings.options, *arguments,
        ]  # fmt: skip
        return self._run(command, {**settings.variables, **(UV_ONCE if once else {})})

    def _run(self, command: Sequence[str], variables: Mapping[str, str]) -> bool:
        try:
            with (
                self._log_path.open("a") as log,
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                    errors="replace", cwd=self._cwd, env={**os.environ, **variables},
                ) as process,
            ):  # fmt: skip
                assert process.stdout is not None
                last = ""

                def doing() -> str:
                    return f"installing; last: {last}" if last else "installing"

                with ticking(doing):
                    for line in process.stdout:
                        log.write(line)
                        if line.strip().startswith(SHOWN):
                            last = line.strip()
                            show_step(last)
        except FileNotFoundError:  # no uv where pip put it
            return False
        show_step("")
        return process.returncode == 0


@contextmanager
def ticking(step: Callable[[], str]) -> Iterator[None]:
    """Say again and again what is being done and for how long: on a terminal on one line that is
    overwritten, elsewhere a line now and then.
    """
    began, is_over = time.monotonic(), Event()
    is_terminal = sys.stderr.isatty()

    def tick() -> None:
        while not is_over.wait(REDRAW_S if is_terminal else REPEAT_S):
            text = f"{step()} ({time.monotonic() - began:.0f} s)"
            if is_terminal:
                show_step(text)
            else:
                print(f"symphony: {text}", file=sys.stderr, flush=True)

    thread = Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def show_step(line: str) -> None:
    """What is being done, on one line that is overwritten; nothing if stderr is no terminal."""
    if not sys.stderr.isatty():
        return
    width = shutil.get_terminal_size().columns - 1
    print(f"\r\033[K{('  ' + line)[:width] if line else ''}", end="", file=sys.stderr, flush=True)
