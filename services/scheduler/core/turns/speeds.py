"""How fast a worker is with a model: as it told, or as is likely."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from services.scheduler.core.turns.kinds import Steps
from shared.blocks import BLOCK_TOKENS
from shared.ids import HostId
from shared.locations import OBJECTS, is_objects
from shared.messages import ModelSpeeds

N = TypeVar("N", int, float)

PEERS_MAX = 64
# Beyond these there is only nonsense.
MS_BAND = (1e-4, 1e4)  # of a step, or of what adds to it
BYTES_PER_S_BAND = (1e5, 1e13)
BLOCK_BYTES_BAND = (1, 1 << 40)
BLOCK_TOKENS_BAND = (1, 1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What transfers take. The defaults are those of an 8 B model on a GPU of 2022 with
    its host's disk, and of 10 Gbit/s between hosts.

    Attributes:
        block_bytes: KV of a block in all layers.
        block_tokens: of the model's blocks.
        load_bytes_per_s: from the host's arena to the device.
        source_bytes_per_s: from the host's disk into its arena.
        peer_bytes_per_s: from other hosts, as far as that was measured.
        other_bytes_per_s: from any other host.
        objects_bytes_per_s: from the object store.
    """

    block_bytes: int = 8 << 20
    block_tokens: int = BLOCK_TOKENS
    load_bytes_per_s: float = 10e9
    source_bytes_per_s: float = 1e9
    peer_bytes_per_s: Mapping[HostId, float] = field(default_factory=dict)
    other_bytes_per_s: float = 1.25e9
    objects_bytes_per_s: float = 0.5e9

    def told(self, told: ModelSpeeds, block_tokens: int) -> "Speeds":
        """The same, but for what the worker knows better. What is no speed is not heard.

        >>> from shared.ids import ModelId
        >>> told = ModelSpeeds(model_id=ModelId("m"), load_bytes_per_s=2e9, source_bytes_per_s=-1)
        >>> Speeds().told(told, 64).load_bytes_per_s, Speeds().told(told, 64).source_bytes_per_s
        (2000000000.0, 1000000000.0)
        """
        peers = {
            host_id: bytes_per_s
            for host_id, bytes_per_s in islice(told.peer_bytes_per_s.items(), PEERS_MAX)
            if _is_within(BYTES_PER_S_BAND, bytes_per_s) and not is_objects(host_id)
        }
        objects_bytes_per_s = told.peer_bytes_per_s.get(OBJECTS, 0.0)
        return replace(
            self,
            block_bytes=_either(BLOCK_BYTES_BAND, told.block_bytes, self.block_bytes),
            block_tokens=_either(BLOCK_TOKENS_BAND, block_tokens, self.block_tokens),
            load_bytes_per_s=_either(
                BYTES_PER_S_BAND, told.load_bytes_per_s, self.load_bytes_per_s
            ),
            source_bytes_per_s=_either(
                BYTES_PER_S_BAND, told.source_bytes_per_s, self.source_bytes_per_s
            ),
            peer_bytes_per_s=peers or self.peer_bytes_per_s,
            other_bytes_per_s=sum(peers.values()) / len(peers) if peers else self.other_bytes_per_s,
            objects_bytes_per_s=_either(
                BYTES_PER_S_BAND, objects_bytes_per_s, self.objects_bytes_per_s
            ),
        )


DEFAULT_SPEEDS = Speeds()


def steps_told(told: ModelSpeeds) -> Steps | None:
    """What a worker has measured of its steps; None as long as it has not."""
    figures = told.token_ms, told.step_ms, told.row_ms
    return Steps(*figures) if all(_is_within(MS_BAND, each) for each in figures) else None


def _is_within(band: tuple[float, float], figure: float) -> bool:
    """Whether a figure can be: NaN cannot, nor an integer that is too large for a float."""
    return band[0] <= figure <= band[1]


def _either(band: tuple[float, float], told: N, else_: N) -> N:
    return told if _is_within(band, told) else else_
