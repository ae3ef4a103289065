"""How fast a worker is with a model: as reported, or a typical value."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, TypeVar

from services.scheduler.core.fleet.kinds import Steps
from services.scheduler.core.fleet.mix import LoraUnits
from shared.blocks import BLOCK_TOKENS
from shared.ids import HostId, ModelId
from shared.locations import OBJECTS, is_objects
from shared.wire.messages import ModelSpeeds, StepModelFit

N = TypeVar("N", int, float)

PEERS_MAX = 64
FITS_MAX = 1024  # of one report
R2_MIN = 0.3  # of a fit that is used
UNIT_NS_MAX = 1e9
# Figures outside of these bands are ignored as implausible.
MS_BAND = (1e-4, 1e4)  # of a step, or of what adds to it
LOAD_MS_BAND = (1e-3, 1e5)
BYTES_PER_S_BAND = (1e5, 1e13)
BLOCK_BYTES_BAND = (1, 1 << 40)
BLOCK_TOKENS_BAND = (1, 1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Transfer speeds. The defaults are those of an 8 B model on a GPU of 2022 with its host's
    disk, and of 10 Gbit/s between hosts.

    Attributes:
        block_bytes: KV of a block in all layers.
        block_tokens: of the model's blocks.
        load_bytes_per_s: from the host memory tier to the device.
        source_bytes_per_s: from the host's disk into its memory tier.
        peer_bytes_per_s: from other hosts, as far as it was measured.
        other_bytes_per_s: from any other host.
        objects_bytes_per_s: from the object store.
        adapter_load_ms: an adapter's image to the device, from where it mostly is; 0: not known.
    """

    block_bytes: int = 8 << 20
    block_tokens: int = BLOCK_TOKENS
    load_bytes_per_s: float = 10e9
    source_bytes_per_s: float = 1e9
    peer_bytes_per_s: Mapping[HostId, float] = field(default_factory=dict)
    other_bytes_per_s: float = 1.25e9
    objects_bytes_per_s: float = 0.5e9
    adapter_load_ms: float = 0.0

    def updated_by(self, reported: ModelSpeeds, block_tokens: int) -> "Speeds":
        """A copy with the worker's plausible figures; implausible ones are ignored.

        >>> from shared.ids import ModelId
        >>> reported = ModelSpeeds(model_id=ModelId("m"), load_bytes_per_s=2e9, block_bytes=-1)
        >>> speeds = Speeds().updated_by(reported, 64)
        >>> speeds.load_bytes_per_s, speeds.block_bytes == Speeds().block_bytes
        (2000000000.0, True)
        """
        peers = {
            host_id: bytes_per_s
            for host_id, bytes_per_s in islice(reported.peer_bytes_per_s.items(), PEERS_MAX)
            if _is_within(BYTES_PER_S_BAND, bytes_per_s) and not is_objects(host_id)
        }
        objects_bytes_per_s = reported.peer_bytes_per_s.get(OBJECTS, 0.0)
        return replace(
            self,
            block_bytes=_either(BLOCK_BYTES_BAND, reported.block_bytes, self.block_bytes),
            block_tokens=_either(BLOCK_TOKENS_BAND, block_tokens, self.block_tokens),
            load_bytes_per_s=_either(
                BYTES_PER_S_BAND, reported.load_bytes_per_s, self.load_bytes_per_s
            ),
            source_bytes_per_s=_either(
                BYTES_PER_S_BAND, reported.source_bytes_per_s, self.source_bytes_per_s
            ),
            peer_bytes_per_s=peers or self.peer_bytes_per_s,
            other_bytes_per_s=sum(peers.values()) / len(peers) if peers else self.other_bytes_per_s,
            objects_bytes_per_s=_either(
                BYTES_PER_S_BAND, objects_bytes_per_s, self.objects_bytes_per_s
            ),
            adapter_load_ms=_either(LOAD_MS_BAND, reported.adapter_load_ms, self.adapter_load_ms),
        )


DEFAULT_SPEEDS = Speeds()


class LoraStep(NamedTuple):
    """What adapters add to a step: so much for each unit of the model of this name
    (`mix.LoraUnits`).
    """

    name: str
    unit_ms: float

    def ms(self, units: LoraUnits) -> float:
        """Of a step with these."""
        added: float = self.unit_ms * getattr(units, self.name)
        return added


GUESSED_LORA = LoraStep("distinct", 1e-9)  # images are read at 1 TB/s


def reported_lora_steps(fits: Iterable[StepModelFit]) -> dict[ModelId, LoraStep]:
    """By model, that which explains most of the steps' differences, of those that explain some."""
    best: dict[ModelId, tuple[float, LoraStep]] = {}
    for fit in islice(fits, FITS_MAX):
        is_good = R2_MIN <= fit.r2 <= 1 and 0 < fit.unit_ns <= UNIT_NS_MAX
        if is_good and fit.name in LoraUnits._fields:
            known = best.get(fit.model_id)
            if known is None or fit.r2 > known[0]:
                best[fit.model_id] = fit.r2, LoraStep(fit.name, fit.unit_ns / 1e6)
    return {model_id: step for model_id, (_, step) in best.items()}


def reported_steps(reported: ModelSpeeds) -> Steps | None:
    """The step times that a worker reports; None until it has measured them."""
    figures = reported.token_ms, reported.step_ms, reported.row_ms
    return Steps(*figures) if all(_is_within(MS_BAND, each) for each in figures) else None


def _is_within(band: tuple[float, float], figure: float) -> bool:
    """Whether a figure is plausible. NaN and integers beyond a float's range are not."""
    return band[0] <= figure <= band[1]


def _either(band: tuple[float, float], reported: N, default: N) -> N:
    return reported if _is_within(band, reported) else default
