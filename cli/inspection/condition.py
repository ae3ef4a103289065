"""Decides whether a deployment that is up is all there, and says what is missing and what that
costs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cli.base.runfile import RunState
from cli.inspection.snapshot import Snapshot
from shared.runtime.urls import hide_password

WITHOUT = {
    "kvstore": "history is kept by the workers alone",
    "tracker": "turns come unannounced, unless a spare leads",
    "scheduler": "new turns wait, unless a spare leads",
    "worker": "its turns go to others, or wait",
    "frontend": "no client can connect",
    "redis": "conversations are not remembered",
    "nats": "nothing can be served",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """How a deployment is.

    Attributes:
        state: ``starting``, ``ready``, ``degraded`` or ``stopping``.
        reasons: why it is degraded; else empty.
    """

    state: str
    reasons: list[str]


def assess(run: RunState, states: Mapping[str, str], snapshot: Snapshot | None) -> Condition:
    """The condition of the deployment that `run` describes.

    Args:
        states: of its processes, by name; those that do not run are missing.
        snapshot: None when NATS could not be reached.
    """
    if run.state != "ready":
        return Condition(run.state, [])
    if snapshot is None:
        nats = f"NATS at {hide_password(run.nats_url)} cannot be reached: {WITHOUT['nats']}"
        return Condition("degraded", [nats])
    reasons = []
    if snapshot.redis_trouble:
        reasons.append(
            f"Redis at {hide_password(run.redis_url)} cannot be reached "
            f"({snapshot.redis_trouble}): {WITHOUT['redis']}"
        )
    for name in run.names:
        state = states.get(name, "away")
        if state in ("ready", "running") or (name == "redis" and snapshot.redis_trouble):
            continue
        kind = name.partition("-")[0]
        how = "does not answer" if state == "silent" else f"is {state}"
        reasons.append(f"{name} {how}: {WITHOUT[kind]}")
    return Condition("degraded" if reasons else "ready", reasons)
