"""Batch and placement policies: built-in ones by name, any other by import path.

Of the batch policies, `deferred` is the paper's; `steady`, the default, is ours: see
`core/batching/rules.py`. Placement policies are in `core/placement/`.
"""

from importlib import import_module

from services.scheduler.core import POLICIES, Limits, PlacementPolicy
from services.scheduler.core.batching.batcher import Batcher, WindowBatcher
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rules import make_rules
from shared.errors import ConfigError

DEFAULT_POLICY = "steady"


def make_batcher(policy: str, delays: Delays | None = None) -> Batcher:
    """The batcher of this name, or of the class at ``package.module:Class``.

    ``timeout:MS`` waits so many milliseconds. A class is called with the `Delays`.

    Raises:
        ConfigError: there is none of this name (lists the names), or none at this path.
    """
    delays = delays or Delays()
    module, _, name = policy.partition(":")
    if not name or module == "timeout":
        return WindowBatcher(make_rules(policy), delays)
    batcher = _load(f"batch policy {policy!r}", module, name, delays)
    if not isinstance(batcher, Batcher):
        raise ConfigError(
            f"batch policy {policy!r} makes a {type(batcher).__name__}, not a Batcher"
        )
    return batcher


def make_placement(policy: str, limits: Limits) -> PlacementPolicy:
    """The placement policy of this name, or of the class at ``package.module:Class``, which is
    called with the `Limits`.

    Raises:
        ConfigError: as `make_batcher`.
    """
    module, _, name = policy.partition(":")
    if not name:
        if policy not in POLICIES:
            names = ", ".join(POLICIES)
            raise ConfigError(
                f"no such placement policy: use one of {names}, or package.module:Class"
            )
        return POLICIES[policy](limits)
    made = _load(f"placement policy {policy!r}", module, name, limits)
    if not isinstance(made, PlacementPolicy):
        raise ConfigError(
            f"placement policy {policy!r} makes a {type(made).__name__}, not a PlacementPolicy"
        )
    return made


def _load(what: str, module: str, name: str, argument: object) -> object:
    try:
        return getattr(import_module(module), name)(argument)
    except Exception as error:  # third-party code
        reason = " ".join(str(error).split())
        raise ConfigError(f"{what}: {reason or type(error).__name__}") from None
