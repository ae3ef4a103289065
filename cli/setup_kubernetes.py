"""``python -m cli.setup_kubernetes FOLDER [KEYS]``: the Secrets of a deployment in Kubernetes, as a
list that ``kubectl apply -f -`` takes. What they hold is made once and kept in FOLDER; KEYS is the
file of the API keys, or else ``keys.json`` there. See docs/kubernetes.md.
"""

import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from cli import setup_servers
from cli.base.reporting import complain
from cli.start.credentials import (
    PASSWORD_BYTES,
    keep_secret,
    peers_secret_file,
    redis_password_file,
    services_nkey_file,
)
from shared.errors import SymphonyError
from shared.private import PRIVATE_UMASK, make_private
from shared.runtime.access import read_secret

NAMESPACE = "symphony"
NATS_SERVERS = tuple(f"nats-{number}.nats-peers:6222" for number in range(3))
"""Pods of the StatefulSet, by names of its headless Service."""


def make_secrets(folder: Path, keys: Path) -> list[dict[str, Any]]:
    """Make what is not there yet, and say it as Secrets.

    Raises:
        ConfigError: the keys cannot be read, or the folder is open to others.
        OSError: a file cannot be written.
    """
    api_keys = read_secret(keys, "keys")
    os.environ["SYMPHONY_API_KEYS_FILE"] = str(keys)  # whose tenants have an account on NATS
    make_private(folder, "credentials")
    credentials, nats, redis = (folder / name for name in ("credentials", "nats", "redis"))
    for path in (nats, redis):
        path.mkdir(exist_ok=True)
    setup_servers.set_up(credentials, nats, redis)
    routes = keep_secret(credentials / "routes.password", secrets.token_urlsafe(PASSWORD_BYTES))
    ours = (services_nkey_file, redis_password_file)
    return [
        _secret("credentials", _texts(*(name(credentials) for name in ours))),
        _secret("peers", _texts(peers_secret_file(credentials))),
        _secret("nats", {**_texts(nats / "nats.conf"), "cluster.conf": cluster_config(routes)}),
        _secret("redis", _texts(redis / "redis.conf")),
        _secret("api-keys", {"keys.json": api_keys}),
    ]


def cluster_config(password: str) -> str:
    """What makes three servers of ``nats.conf`` one cluster.

    Args:
        password: with which they let each other in.
    """
    routes = ", ".join(f'"nats://route:{password}@{server}"' for server in NATS_SERVERS)
    return (
        "include nats.conf\n"
        "server_name: $POD_NAME\n"
        "cluster {\n"
        "  name: symphony\n"
        "  listen: 0.0.0.0:6222\n"
        f'  authorization {{ user: route, password: "{password}", timeout: 2 }}\n'
        f"  routes: [ {routes} ]\n"
        "}\n"
    )


def _texts(*paths: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in paths}


def _secret(name: str, texts: dict[str, str]) -> dict[str, Any]:
    labels = {"app.kubernetes.io/part-of": "symphony"}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": texts}


def main() -> int:
    """Exit status for the paths named on the command line."""
    os.umask(PRIVATE_UMASK)
    folder, *given = map(Path, sys.argv[1:])
    keys = given[0] if given else folder / "keys.json"
    try:
        items = make_secrets(folder, keys)
    except SymphonyError as error:
        complain(error.message)
        return 1
    except OSError as error:
        complain(f"{folder}: {error.strerror}")
        return 1
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
