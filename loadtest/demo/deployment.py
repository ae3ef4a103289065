"""The demonstration's deployment: two hosts with an emulated GPU each."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson

from loadtest.demo.figures import ADVISORIES, ANNOUNCED, Counts
from loadtest.demo.script import Model
from loadtest.deployment import Deployment
from shared.errors import PeerUnavailable
from shared.runtime.exposition import samples_of
from shared.runtime.settings import as_variables

NUM_HOSTS = 2
ANSWER_S = 10.0


def counts_of(url: str) -> Counts:
    """What a deployment's own counters say of hints.

    Raises:
        PeerUnavailable: it does not answer.
    """
    try:
        answer = httpx.get(f"{url}/metrics", timeout=ANSWER_S).raise_for_status()
    except httpx.HTTPError as error:
        raise PeerUnavailable(f"{url}/metrics: {error or type(error).__name__}") from None
    counts: dict[tuple[str, str], float] = {}
    for name, labels, value in samples_of(answer.text, {ADVISORIES, ANNOUNCED}):
        key = (name, labels.get("outcome", ""))
        counts[key] = counts.get(key, 0.0) + value
    return counts


def settings_of(model: Model) -> dict[str, str]:
    """Variables of the deployment: everything that is counted in bytes is `model.scale` times as
    small as it stands in `model`.

    >>> settings_of(Model())["SYMPHONY_KV_BYTES"]
    '73728000'
    """
    token_bytes = model.scaled.kv_bytes_per_token
    return {
        "SYMPHONY_KV_BYTES": str(model.pool_tokens * token_bytes),
        "SYMPHONY_ARENA_BYTES": str(model.arena_tokens * token_bytes),
        "SYMPHONY_DISK_BYTES_PER_S": f"{model.disk_write_bytes_per_s / model.scale:.0f}",
        "SYMPHONY_PEER_BYTES_PER_S": f"{model.peer_bytes_per_s / model.scale:.0f}",
        **as_variables({
            "link_mb_s": f"{model.bus_bytes_per_s / model.scale / 1e6:g}",
            "disk_read_mb_s": f"{model.disk_read_bytes_per_s / model.scale / 1e6:g}",
        }),
    }  # fmt: skip


@contextmanager
def demo_deployment(model: Model, kept_logs: Path) -> Iterator[Deployment]:
    """Start it, and stop it with the body.

    Args:
        kept_logs: a folder to be made of its logs if the body fails; else nothing is left of it.

    Raises:
        PeerUnavailable: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="symphony-demo-") as name:
        profile = Path(name) / "profile.json"
        profile.write_bytes(orjson.dumps(model.scaled))
        options = ("--hosts", str(NUM_HOSTS), "--emulate", str(profile), "--true-pages")
        deployment = Deployment(Path(name) / "data", *options, settings=settings_of(model))
        try:
            with deployment:
                yield deployment
        except Exception:
            shutil.copytree(deployment.logs, kept_logs, dirs_exist_ok=True)
            raise
