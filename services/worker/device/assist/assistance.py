"""Helpers in a step: they compute what adapters add in layers that are not here yet (CaraServe,
section 4), from the arena; see `services.worker.device.assist`.
"""

import time
from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kernels.sgmv import Segments
from kernels.sgmv.interface import NO_ADAPTER
from services.worker.core.step import ImageEntry, Ints, StepPlan
from services.worker.device.assist.host_crew import HostCrew
from services.worker.device.assist.orders import AssistedImage
from services.worker.device.base.step import AnySegments

PATIENCE_NS = 20_000_000  # for one product; then its layer is waited for


@dataclass(slots=True)
class HostAssistance:
    """Of helpers whose results the host waits for.

    Attributes:
        of_token: int32: line of each new token.
        took_ns: what was waited for them until now.
    """

    crew: HostCrew
    lines: Set[int]
    of_token: torch.Tensor
    took_ns: int = 0
    _rows: dict[frozenset[int], torch.Tensor] = field(default_factory=dict)

    def add(
        self, layer: int, site: int, x: torch.Tensor, y: torch.Tensor, lines: frozenset[int]
    ) -> bool:
        started_ns = time.monotonic_ns()
        if (rows := self._rows.get(lines)) is None:
            rows = self._rows[lines] = torch.from_numpy(rows_of(self.of_token.numpy(), lines))
        self.crew.submit(layer, site, x[rows], self.of_token[rows])
        added = self.crew.collect(PATIENCE_NS)
        if added is not None:
            y[rows] = (y[rows].float() + added).to(y.dtype)
        self.took_ns += time.monotonic_ns() - started_ns
        return added is not None

    def rest(self, segments: AnySegments, lines: frozenset[int]) -> AnySegments:
        assert isinstance(segments, Segments)
        return without(segments, lines)


def assist(crew: HostCrew, plan: StepPlan, images: dict[int, ImageEntry]) -> HostAssistance | None:
    """Begin a step with helpers; None: there are none now, or they cannot do so much.

    Args:
        images: by line.
    """
    of_token = np.repeat(plan.adapters, plan.lengths)
    if len(rows_of(of_token, plan.assists.keys())) > crew.tokens_max:
        return None
    if not crew.begin(assisted_images(plan, images)):
        return None
    return HostAssistance(crew, plan.assists.keys(), torch.from_numpy(of_token))


def assisted_images(plan: StepPlan, images: dict[int, ImageEntry]) -> dict[int, AssistedImage]:
    """What helpers are to read in a step, by line."""
    return {
        line: AssistedImage(
            images[line].adapter_hash,
            images[line].ranks,
            source.pages,
            source.generations,
            source.epoch,
        )
        for line, source in plan.assists.items()
    }


def rows_of(of_token: Ints, lines: Set[int]) -> npt.NDArray[np.intp]:
    """Tokens that are of these lines.

    >>> rows_of(np.array([4, -1, 7, 4], np.int32), frozenset({4, 7})).tolist()
    [0, 2, 3]
    """
    return np.flatnonzero(np.isin(of_token, list(lines)))


def without(segments: Segments, lines: frozenset[int]) -> Segments:
    """The segments of all others.

    >>> without(Segments(np.array([0, 2, 3], np.int32), np.array([4, 1], np.int32)), {4}).lines
    array([-1,  1], dtype=int32)
    """
    kept = np.where(np.isin(segments.lines, list(lines)), np.int32(NO_ADAPTER), segments.lines)
    return Segments(segments.starts, kept)
