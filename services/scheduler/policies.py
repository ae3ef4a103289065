"""Batch policies: the scheduler's own by name, any other by import path.

`deferred` is the paper's; `steady`, the default, is ours: see `core/batching/rules.py`.
"""

from importlib import import_module

from services.scheduler.core.batching.batcher import Batcher, WindowBatcher
from services.scheduler.core.batching.job import Delays
from services.scheduler.core.batching.rules import make_rules
from shared.errors import ConfigError

DEFAULT_POLICY = "steady"


def make_batcher(policy: str, delays: Delays | None = None) -> Batcher:
    """The batcher of this name, or of the class at ``package.module:Class``.

    ``timeout:MS`` waits so many milliseconds. A class is called with the `Delays`.

    Raises:
        ConfigError: there is none of this name (lists the names), or the path leads to none.
    """
    delays = delays or Delays()
    module, _, name = policy.partition(":")
    if not name or module == "timeout":
        return WindowBatcher(make_rules(policy), delays)
    try:
        batcher = getattr(import_module(module), name)(delays)
    except Exception as error:  # a stranger's code
        reason = " ".join(str(error).split())
        raise ConfigError(f"batch policy {policy!r}: {reason or type(error).__name__}") from None
    if not isinstance(batcher, Batcher):
        raise ConfigError(f"batch policy {policy!r} is none: it makes a {type(batcher).__name__}")
    return batcher
