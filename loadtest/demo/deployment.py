"""The demonstration's deployment: two hosts with an emulated GPU each."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    """Variables of the deployment.

    >>> settings_of(Model())["SYMPHONY_KV_BYTES"]
    '18432000'
    """
    return {
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
def demo_deployment(model: Model, kept_logs: Path) -> Iterator[Deployment]:
    """Start it, and stop it with the body.

    Args:
        kept_logs: a folder to be made of its logs if the body fails; else nothing is left of it.

    Raises:
        PeerUnavailable: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="symphony-demo-") as name:
        profile = Path(name) / "profile.json"
        profile.write_bytes(orjson.dumps(profile_of(model)))
        options = ("--hosts", str(NUM_HOSTS), "--emulate", str(profile), "--true-pages")
        deployment = Deployment(Path(name) / "data", *options, settings=settings_of(model))
        try:
            with deployment:
                yield deployment
        except Exception:
            shutil.copytree(deployment.logs, kept_logs, dirs_exist_ok=True)
            raise
