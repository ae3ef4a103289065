"""How fast a worker is with a model: as it told, or as is likely."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

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
ALIKE = 0.2  # steps that differ by less take as long: what each worker measures is no more exact
ROWS_COMPARED = 8
NEW_SHARE = 0.1  # of what is typical, that one worker's news are


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
        objects_bytes_per_s: from the object store.
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
    objects_bytes_per_s: float = 0.5e9

    def told(self, told: ModelSpeeds, block_tokens: int) -> "Speeds":
        """The same, but for what the worker knows better. What is no speed is not heard. Of its
        steps it knows both figures, or none: one alone would not fit with the other of somebody
        else's.

        >>> from shared.ids import ModelId
        >>> slow = Speeds().told(ModelSpeeds(model_id=ModelId("m"), token_ms=3, step_ms=-1.0), 64)
        >>> slow.token_ms, slow.step_ms == Speeds().step_ms
        (3, True)
        """
        peers = {
            host_id: bytes_per_s
            for host_id, bytes_per_s in islice(told.peer_bytes_per_s.items(), PEERS_MAX)
            if _is_within(BYTES_PER_S_BAND, bytes_per_s) and not is_objects(host_id)
        }
        knows_steps = _is_within(MS_BAND, told.step_ms) and _is_within(MS_BAND, told.row_ms)
        objects_bytes_per_s = told.peer_bytes_per_s.get(OBJECTS, 0.0)
        return replace(
            self,
            token_ms=_either(MS_BAND, told.token_ms, self.token_ms),
            step_ms=told.step_ms if knows_steps else self.step_ms,
            row_ms=told.row_ms if knows_steps else self.row_ms,
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

    def among(self, typical: "Speeds") -> "Speeds":
        """The same, with typical steps if its own are much like them. Workers of one kind measure
        a little differently, each time; where turns go must not follow from that.

        >>> usual = Speeds(step_ms=10.0, row_ms=0.05)
        >>> Speeds(step_ms=10.5, row_ms=0.01).among(usual).row_ms
        0.05
        >>> Speeds(step_ms=20.0, row_ms=0.01).among(usual).row_ms
        0.01
        """
        own_ms = self.step_ms + ROWS_COMPARED * self.row_ms
        typical_ms = typical.step_ms + ROWS_COMPARED * typical.row_ms
        if not (_is_alike(own_ms, typical_ms) and _is_alike(self.token_ms, typical.token_ms)):
            return self
        return replace(
            self, step_ms=typical.step_ms, row_ms=typical.row_ms, token_ms=typical.token_ms
        )

    def with_news(self, news: "Speeds") -> "Speeds":
        """What is typical, once one worker more has told."""
        mix = {
            name: (1 - NEW_SHARE) * getattr(self, name) + NEW_SHARE * getattr(news, name)
            for name in ("step_ms", "row_ms", "token_ms")
        }
        return replace(news, **mix)


DEFAULT_SPEEDS = Speeds()


def _is_alike(own_ms: float, typical_ms: float) -> bool:
    return abs(own_ms - typical_ms) <= ALIKE * typical_ms


def _is_within(band: tuple[float, float], figure: float) -> bool:
    """Whether a figure can be: NaN cannot, nor an integer that is too large for a float."""
    return band[0] <= figure <= band[1]


def _either(band: tuple[float, float], told: N, else_: N) -> N:
    return told if _is_within(band, told) else else_
