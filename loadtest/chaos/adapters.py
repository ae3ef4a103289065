"""Adapters for streams to run on: what a deployment is started with, so that some are always on
their way.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cli.adapters.offline import base_card
from loadtest.bench.lora.made import TARGETS, layer_modules, written_in_turn
from loadtest.chaos.sizes import sizes_of
from services.worker.core.engine_limits import LoraStart
from services.worker.models.demo_model import DEMO_MODEL_ID, make_demo_model
from shared.runtime.settings import as_variables

RANKS = (4, 8, 16)
ROOM_SHARE = 0.25  # of adapters that a pool has room for, beside the streams' KV
LINEARS = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Attributes:
    num: of adapters; 0: all streams run on the base.
    lora_start: how turns begin whose adapter is loading.
    link_mb_s: of loads into a worker's pool; 0: as fast as memory is.
    """

    num: int = 0
    lora_start: LoraStart = "auto"
    link_mb_s: float = 0.0

    @property
    def names(self) -> list[str]:
        """Of all adapters."""
        return [f"a{number}" for number in range(self.num)]

    @property
    def has_helpers(self) -> bool:
        """Whether workers have processes that assist."""
        is_wanted = self.lora_start == "assist" or (self.lora_start == "auto" and self.link_mb_s)
        return bool(self.num and is_wanted)


NONE = Wanted()


@dataclass(frozen=True, slots=True)
class Offer:
    """What a deployment is started with.

    Attributes:
        options: of `up`.
        settings: variables of its services.
        load_s: what all adapters together take over the link.
    """

    options: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    load_s: float = 0.0


@contextmanager
def offered(wanted: Wanted, num_turns: int, turn_tokens: int) -> Iterator[Offer]:
    """Adapters of the demo model with random weights, for everybody.

    Args:
        num_turns: that have room for their KV in the pool of one worker.
        turn_tokens: of the longest.
    """
    if not wanted.num:
        yield Offer()
        return
    with tempfile.TemporaryDirectory(prefix="symphony-chaos-") as name:
        folder = Path(name)
        card = base_card(str(make_demo_model(folder / DEMO_MODEL_ID)))
        modules, numbers = layer_modules(card), range(wanted.num)
        written = written_in_turn(folder, modules, card.dtype, LINEARS, RANKS, numbers)
        pairs = zip(wanted.names, written, strict=True)
        options = [word for name, path in pairs for word in ("--adapter", f"{name}={path}")]
        sizes = sizes_of(card, TARGETS[LINEARS], RANKS)
        room = max(int(wanted.num * ROOM_SHARE), 1)
        settings = {
            "SYMPHONY_KV_BYTES": str(sizes.pool_bytes(room, num_turns, turn_tokens)),
            **as_variables({"lora_start": wanted.lora_start, "link_mb_s": str(wanted.link_mb_s)}),
        }
        link = wanted.link_mb_s * 1e6
        yield Offer(options, settings, wanted.num * sizes.image / link if link else 0.0)
