"""How fast a worker is with a model: as it told, or as is likely."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite

from shared.blocks import BLOCK_TOKENS
from shared.ids import HostId
from shared.messages import ModelSpeeds

PEERS_MAX = 64
FIGURE_MAX = 1e15  # of anything: beyond it there is only nonsense


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What steps and transfers take. The defaults are those of an 8 B model on a GPU of 2022 with
    its host's disk, and of 10 Gbit/s between hosts.

    Attributes:
        token_ms: a prompt token more in a step.
        step_ms: a step without rows.
        row_ms: a decoding turn more in a step.
        block_bytes: KV of a block in all layers.
        block_tokens: of the model's blocks.
        load_bytes_per_s: from the host's arena to the device.
        source_bytes_per_s: from the host's disk into its arena.
        peer_bytes_per_s: from other hosts, as far as that was measured.
        other_bytes_per_s: from any other host.
    """

    token_ms: float = 0.1
    step_ms: float = 10.0
    row_ms: float = 0.05
    block_bytes: int = 8 << 20
    block_tokens: int = BLOCK_TOKENS
    load_bytes_per_s: float = 10e9
    source_bytes_per_s: float = 1e9
    peer_bytes_per_s: Mapping[HostId, float] = field(default_factory=dict)
    other_bytes_per_s: float = 1.25e9

    def told(self, told: ModelSpeeds, block_tokens: int) -> "Speeds":
        """The same, but for what the worker knows better. What is no speed is not heard.

        >>> from shared.ids import ModelId
        >>> slow = Speeds().told(ModelSpeeds(model_id=ModelId("m"), row_ms=3, step_ms=-1.0), 64)
        >>> slow.row_ms, slow.step_ms == Speeds().step_ms
        (3, True)
        """
        peers = {
            host_id: bytes_per_s
            for host_id, bytes_per_s in islice(told.peer_bytes_per_s.items(), PEERS_MAX)
            if _is_figure(bytes_per_s)
        }
        return replace(
            self,
            token_ms=_either(told.token_ms, self.token_ms),
            step_ms=_either(told.step_ms, self.step_ms),
            row_ms=_either(told.row_ms, self.row_ms),
            block_bytes=int(_either(told.block_bytes, self.block_bytes)),
            block_tokens=block_tokens,
            load_bytes_per_s=_either(told.load_bytes_per_s, self.load_bytes_per_s),
            source_bytes_per_s=_either(told.source_bytes_per_s, self.source_bytes_per_s),
            peer_bytes_per_s=peers or self.peer_bytes_per_s,
            other_bytes_per_s=sum(peers.values()) / len(peers) if peers else self.other_bytes_per_s,
        )


DEFAULT_SPEEDS = Speeds()


def _is_figure(figure: float) -> bool:
    return isfinite(figure) and 0 < figure <= FIGURE_MAX


def _either(told: float, else_: float) -> float:
    return told if _is_figure(told) else else_
