"""Subjects and messages of the services, as a tenant might send them."""

import random
from typing import Any

import orjson

from loadtest.fuzz.tenancy.eavesdropping import MARK
from shared.wire import subjects
from shared.wire.subjects import PUBLIC, Subject

WIRES: list[Subject[Any, Any]] = [
    wire for wire in vars(subjects).values() if isinstance(wire, Subject)
]
BEHIND = [*PUBLIC.values(), "_INBOX.*", "_R_.*"]
HARMS: list[Subject[Any, Any]] = [
    subjects.SESSION_FORGET,
    subjects.SESSION_DELETE,
    subjects.SESSION_DROP,
    subjects.TENANT_ADVISORY_INVALIDATE,
]
FAMILIES = {wire.pattern.partition(".")[0] for wire in WIRES}
STARRED = {wire.pattern.partition("*")[0] + ">" for wire in WIRES if "*" in wire.pattern}
WILD = [
    ">", "*.>", "_INBOX.>", "_R_.>", "$SYS.>", "$JS.>", "$KV.>",
    *sorted(STARRED | {f"{family}.{rest}" for family in FAMILIES for rest in (">", "*.*.*")}),
]  # fmt: skip
STREAM = f"KV_{subjects.LEASES.name}"
ASKED_OF_NATS = [
    "$JS.API.INFO", "$JS.API.STREAM.LIST", f"$JS.API.STREAM.INFO.{STREAM}",
    f"$JS.API.STREAM.DELETE.{STREAM}", f"$JS.API.DIRECT.GET.{STREAM}",
    f"$KV.{subjects.LEASES.name}.scheduler", "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ",
    "$SYS.REQ.ACCOUNT.SERVICES.CONNZ", "$SYS.REQ.USER.INFO", "$SYS.REQ.ACCOUNT.PING.CONNZ",
]  # fmt: skip
QUEUES = ("", "", "frontend", "tracker")
NUM_PROCESSES = 4


def internal_subject(rng: random.Random, tenant: str, *, wild: bool) -> tuple[str, str]:
    """A subject that is not a tenant's, and a queue group of those who listen there.

    Args:
        wild: it may have stars.
    """
    if wild and rng.random() < 0.5:
        return rng.choice(WILD), rng.choice(QUEUES)
    wire = rng.choice([wire for wire in WIRES if wire.pattern not in PUBLIC])
    pattern = rng.choice([wire.pattern, wire.pattern, rng.choice(BEHIND)])
    is_filled = not wild or rng.random() < 0.5
    return _filled(pattern, rng, tenant) if is_filled else pattern, wire.queue or rng.choice(QUEUES)


def draft(
    rng: random.Random, tenant: str, session_id: str, *, deletes: bool = False
) -> tuple[str, bytes]:
    """A subject and a message that would do harm if it arrived there.

    Args:
        deletes: the harm is that the session is gone.
    """
    if not deletes and rng.random() < 0.2:
        return rng.choice(ASKED_OF_NATS), b""
    wires = [wire for wire in WIRES if wire.pattern not in PUBLIC]
    wire = rng.choice(HARMS if deletes else wires)
    body: dict[str, Any] = {"session_id": session_id, "tenant": tenant, "mark": MARK}
    if not deletes:
        body |= {"turn_id": "turn-1", "worker_id": "host-1-w0", "attempt": 2**40, "prompt": MARK}
    return _filled(wire.pattern, rng, tenant), orjson.dumps(body)


def _filled(pattern: str, rng: random.Random, tenant: str) -> str:
    number = rng.randrange(NUM_PROCESSES)
    name = tenant if ".tenant." in pattern else rng.choice(
        [f"fe-{number}", f"w{number}", f"host-1-w{number}", "host-1", str(number), "scheduler"]
    )  # fmt: skip
    return pattern.replace("*", name)
