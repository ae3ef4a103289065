"""Ways into a deployment's servers without a key of theirs. Each returns what it got."""

import asyncio
import random
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
from nats.errors import Error
from nkeys import PREFIX_BYTE_USER, encode_seed

from loadtest.deployment import Deployment

PATIENCE_S = 5.0
REFUSALS = (b"-NOAUTH", b"-WRONGPASS", b"-ERR")
HARMLESS = (b"RESET", b"QUIT")  # allowed without a password


async def try_nats(deployment: Deployment, rng: random.Random) -> str:
    """Connect to NATS without credentials, or with invented ones."""
    seed = encode_seed(rng.randbytes(32), PREFIX_BYTE_USER).decode()
    options: dict[str, Any] = rng.choice([
        {}, {"nkeys_seed_str": seed}, {"user": "SERVICES", "password": "SERVICES"},
        {"user": "tenant-acme", "password": ""}, {"token": "services"}, {"token": "acme"},
        {"user": "$SYS", "password": "admin"}, {"user": "", "password": ""},
    ])  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            client = await nats.connect(
                deployment.run.nats_url,
                allow_reconnect=False,
                max_reconnect_attempts=0,
                connect_timeout=2,
                error_cb=_ignore,
                **options,
            )
    except (Error, OSError, TimeoutError):
        return ""
    await client.close()
    return f"NATS let in a client with {options}"


async def _ignore(_: Exception) -> None:
    return


async def try_redis(deployment: Deployment, rng: random.Random, tenant: str) -> str:
    """Speak to Redis without its password."""
    lines: list[bytes] = rng.choice([
        [], [b"AUTH ''"], [b"AUTH default ''"], [b"AUTH default default"], [b"AUTH symphony"],
        [b"HELLO 3 AUTH default ''"], [b"RESET"], [b"AUTH " + b"x" * 512],
    ])  # fmt: skip
    key = f"symphony:session:{len(tenant)}:{tenant}:ledger-0".encode()
    command: bytes = rng.choice([
        b"GET " + key, b"KEYS *", b"DEL " + key, b"FLUSHALL", b"CONFIG GET requirepass", b"SCAN 0",
        b"EVAL 'return redis.call(\"keys\", \"*\")' 0", b"MONITOR", b"SUBSCRIBE x", b"ACL WHOAMI",
        b"CLIENT LIST", b"REPLICAOF NO ONE", b"SHUTDOWN NOSAVE", b"INFO", b"DEBUG SLEEP 1", b"PING",
        b"MULTI", b"SET " + key + b" x", b"BGREWRITEAOF", b"PSYNC ? -1",
    ])  # fmt: skip
    url = urlsplit(deployment.run.redis_url)
    reader, writer = await asyncio.open_unix_connection(Path(url.path))
    try:
        async with asyncio.timeout(PATIENCE_S):
            for line in [*lines, command]:
                writer.write(line + b"\r\n")
                await writer.drain()
                answer = await reader.readline()
                if answer.startswith(REFUSALS) or line in HARMLESS:
                    continue
                return f"Redis answered {line!r} after {lines}: {answer!r}"
    except TimeoutError:
        return f"Redis did not answer {command!r} after {lines}"
    finally:
        writer.close()
    return ""
