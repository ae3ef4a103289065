"""Configurations of a deployment's servers, written before they start."""

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from cli.base.children import NATS_MAX_PAYLOAD_BYTES
from cli.start.credentials import (
    make_credentials,
    nkey_file,
    public_nkey,
    redis_password_file,
    services_nkey_file,
)
from cli.start.options import SOCKET_PATH_BYTES_MAX, DeploymentOptions
from shared.errors import ConfigError
from shared.ids import TenantId, tenant_token
from shared.private import check_private, make_new, make_private
from shared.runtime.access import read_secret
from shared.wire.subjects import LEASES, PUBLIC, TENANT_REPLIES
from shared.wire.tenants import INBOXES, subject_of

PRIVATE = 0o700
SERVICES = "SERVICES"  # the account of all services
TENANT_CONNECTIONS_MAX = 256  # each may make the server keep 64 MiB that are not read
TENANT_SUBSCRIPTIONS_MAX = 16_384


def prepare_servers(
    options: DeploymentOptions, nats_port: int, tenants: Collection[TenantId], redis_bytes_max: int
) -> None:
    """Credentials and configurations of those servers that the deployment starts itself.

    Raises:
        ConfigError: a folder for them is not this user's alone, or a path is too long.
        OSError: the disk is full.
    """
    credentials = options.credentials_dir
    if options.nats_url is None or options.redis_url is None or options.num_hosts > 1:
        make_credentials(credentials, tenants)
    if options.nats_url is None:
        folder = _folder(options.data_dir / "nats")
        remove_stored_leases(folder / "jetstream")
        listening = f"listen: 127.0.0.1:{nats_port}\n"
        text = listening + nats_config(folder / "jetstream", credentials, tenants)
        write_private(folder / "nats.conf", text)
    if options.redis_url is None:
        folder = _folder(options.data_dir / "redis")
        if len(os.fsencode(options.redis_socket)) > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"{options.redis_socket}: too long a path for Redis' socket: set TMPDIR, or "
                "--data-dir, to a shorter one"
            )
        make_private(options.redis_socket.parent, "Redis' socket")
        password = read_secret(redis_password_file(credentials), "credentials")
        listening = f"unixsocket {_quoted(options.redis_socket)}\nunixsocketperm 700\nport 0\n"
        text = listening + redis_config(folder, password, redis_bytes_max)
        write_private(folder / "redis.conf", text)


def remove_stored_leases(store_dir: Path) -> None:
    """Leases that an earlier release kept on disk. Now they are in memory, where a full disk does
    no harm; a bucket that is there would stay where it is. All may be lost (`shared.bus.bucket`).
    """
    stream = store_dir / "jetstream" / SERVICES / "streams" / f"KV_{LEASES.name}"
    shutil.rmtree(stream, ignore_errors=True)


def nats_config(store_dir: Path, credentials: Path, tenants: Collection[TenantId]) -> str:
    """Everything of a ``nats.conf`` but where it listens.

    The services have an account, and each tenant has one. What is published in one account is not
    seen in another, except that what a tenant publishes to a public subject goes to the services,
    under a subject that names the tenant, and that what the services publish to the tenant's
    `TENANT_REPLIES` arrives at its inboxes. The server keeps nothing of a request: it would for an
    hour, were these its services in place of streams, also of requests that are never answered.
    Who has no key of any of them does not get in.

    Args:
        credentials: where the keys of all of them are.
    """
    ordered = sorted(tenants)
    exports = "\n".join(
        f"      {{ stream: {_replies(tenant)}, accounts: [{json.dumps(_account(tenant))}] }}"
        for tenant in ordered
    )
    imports = "\n".join(
        f"      {{ stream: {{ account: {json.dumps(_account(tenant))}, "
        f"subject: {json.dumps(theirs)} }}, to: {json.dumps(subject_of(ours, tenant))} }}"
        for tenant in ordered
        for theirs, ours in PUBLIC.items()
    )
    accounts = "\n".join(_tenant_account(tenant, credentials) for tenant in ordered)
    return (
        f"max_payload: {NATS_MAX_PAYLOAD_BYTES}\n"
        f"jetstream {{ store_dir: {_quoted(store_dir)} }}\n"
        "accounts {\n"
        f"  {SERVICES} {{\n"
        "    jetstream: enabled\n"
        f"    users: [ {{ nkey: {public_nkey(services_nkey_file(credentials))} }} ]\n"
        f"    exports: [\n{exports}\n    ]\n"
        f"    imports: [\n{imports}\n    ]\n"
        "  }\n"
        f"{accounts}\n"
        "}\n"
    )


def _tenant_account(tenant: TenantId, credentials: Path) -> str:
    exports = "\n".join(
        f"      {{ stream: {json.dumps(subject)}, accounts: [{SERVICES}] }}" for subject in PUBLIC
    )
    imported = f"{{ account: {SERVICES}, subject: {_replies(tenant)} }}"
    return (
        f"  {json.dumps(_account(tenant))} {{\n"
        f"    users: [ {{ nkey: {public_nkey(nkey_file(credentials, tenant))} }} ]\n"
        f"    limits: {{ max_connections: {TENANT_CONNECTIONS_MAX}, "
        f"max_subscriptions: {TENANT_SUBSCRIPTIONS_MAX} }}\n"
        f"    exports: [\n{exports}\n    ]\n"
        f"    imports: [ {{ stream: {imported}, to: {json.dumps(INBOXES + '>')} }} ]\n"
        "  }"
    )


def _account(tenant: TenantId) -> str:
    return f"tenant-{tenant_token(tenant)}"


def _replies(tenant: TenantId) -> str:
    return json.dumps(subject_of(TENANT_REPLIES, tenant))


def redis_config(folder: Path, password: str, bytes_max: int) -> str:
    """Everything of a ``redis.conf`` but where it listens.

    Args:
        folder: for its data.
        bytes_max: what it may hold. Beyond that it refuses what takes more, and forgets nothing:
            those who write see to it before that what is of the tenant with most makes room
            (`services.frontend.sessions.redis_scripts`).
    """
    return (
        f"dir {_quoted(folder)}\n"
        "daemonize no\n"
        "appendonly yes\n"
        'save ""\n'
        f"requirepass {password}\n"
        f"maxmemory {bytes_max}\n"
        "maxmemory-policy noeviction\n"
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in place of the one there."""
    with open(make_new(path), "w") as file:
        file.write(text)


def _folder(path: Path) -> Path:
    """A server's folder: closed to others, also if an earlier release left it open."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(PRIVATE)
    check_private(path, "data folder")
    return path


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
