"""The demonstration's own house: two hosts with an emulated GPU each, on free ports and in a folder
of its own. It ends with this process, whatever happens, and no other house is touched.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import orjson

from cli.runfile import read_run_state
from cli.start.hosts import remove_arenas
from cli.start.options import HouseOptions
from cli.start.plan import python_path
from cli.supervisor.children import start_child, stop_child
from loadtest.demo.figures import ADVISORIES, ANNOUNCED, Counts
from loadtest.demo.script import Model
from shared.errors import PeerUnavailable
from shared.exposition import samples_of
from shared.settings import as_variables

NUM_HOSTS = 2
OWN = "SYMPHONY_"  # settings are the demonstration's alone
START_S = 120.0
STOP_S = 20.0
LOOK_S = 0.1
ANSWER_S = 10.0
UP_LOG = "up.log"


@dataclass(frozen=True, slots=True)
class House:
    """One that runs.

    Attributes:
        logs: the folder of its processes' logs.
    """

    url: str
    logs: Path

    def counts(self) -> Counts:
        """What its own counters say of hints.

        Raises:
            PeerUnavailable: it does not answer.
        """
        try:
            answer = httpx.get(f"{self.url}/metrics", timeout=ANSWER_S).raise_for_status()
        except httpx.HTTPError as error:
            raise PeerUnavailable(f"{self.url}/metrics: {error or type(error).__name__}") from None
        counts: dict[tuple[str, str], float] = {}
        for name, labels, value in samples_of(answer.text, {ADVISORIES, ANNOUNCED}):
            key = (name, labels.get("outcome", ""))
            counts[key] = counts.get(key, 0.0) + value
        return counts


def settings_of(model: Model, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the house: none of those that the user has set for another one.

    >>> settings_of(Model(), {"HOME": "/h", "SYMPHONY_HTTP_PORT": "80"})["SYMPHONY_KV_BYTES"]
    '18432000'
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(OWN)}
    return {
        **kept,
        "PYTHONPATH": python_path(environment),
        "SYMPHONY_KV_BYTES": str(model.pool_tokens * model.kv_bytes_per_token),
        "SYMPHONY_ARENA_BYTES": str(model.arena_bytes),
        **as_variables({"link_mb_s": f"{model.link_bytes_per_s / 1e6:g}"}),
        "SYMPHONY_PEER_BYTES_PER_S": f"{model.link_bytes_per_s:g}",
    }


def profile_of(model: Model) -> dict[str, Any]:
    """As `--emulate` reads it."""
    return {
        "name": model.name,
        "base_ms": model.base_ms,
        "prefill_ms_per_token": model.prefill_ms_per_token,
        "decode_ms_per_turn": model.decode_ms_per_turn,
        "num_layers": model.num_layers,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "max_model_len": model.max_model_len,
    }


@contextmanager
def open_house(model: Model, kept_logs: Path) -> Iterator[House]:
    """Start it, and end it with the body.

    Args:
        kept_logs: a folder to be made of its logs if the body fails; else nothing is left of it.

    Raises:
        PeerUnavailable: it did not come up.
    """
    folder = Path(tempfile.mkdtemp(prefix="symphony-demo-"))
    data_dir, child = folder / "data", None
    try:
        data_dir.mkdir(mode=0o700)
        profile = folder / "profile.json"
        profile.write_bytes(orjson.dumps(profile_of(model)))
        command = [
            sys.executable, "-P", "-m", "cli.main", "up", "--data-dir", str(data_dir),
            "--port", "0", "--hosts", str(NUM_HOSTS), "--emulate", str(profile), "--true-pages",
        ]  # fmt: skip
        log = data_dir / "logs" / UP_LOG
        child = start_child(command, log_path=log, env=settings_of(model, os.environ))
        yield House(_ready(child, data_dir, kept_logs / UP_LOG), data_dir / "logs")
    except Exception:
        shutil.copytree(data_dir / "logs", kept_logs, dirs_exist_ok=True)
        raise
    finally:
        _end(child, data_dir)
        shutil.rmtree(folder, ignore_errors=True)


def _ready(child: "Popen[bytes]", data_dir: Path, kept_log: Path) -> str:
    """Wait until a turn can be served; where."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and child.poll() is None:
        state = read_run_state(data_dir)
        if state is not None and state.state == "ready":
            return state.url
        time.sleep(LOOK_S)
    what = "did not come up" if child.poll() is None else "ended before it was ready"
    raise PeerUnavailable(f"the demonstration's house {what}: see {kept_log}")


def _end(child: "Popen[bytes] | None", data_dir: Path) -> None:
    """Stop it, and what it would leave in memory if it had to be killed. Nobody breaks this off: it
    takes so long at most.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        if child is not None:
            stop_child(child, STOP_S)
        options = HouseOptions(data_dir=data_dir)
        remove_arenas(options.host_id)
        options.remove_socket()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
