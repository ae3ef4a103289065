"""Helpers in a step: they compute what adapters add in layers that are not here yet (CaraServe,
section 4), from the arena; see `services.worker.device.assist`.
"""

import time
from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.sgmv import Segments
from kernels.sgmv.interface import NO_ADAPTER
from services.worker.core.step import ImageEntry, StepPlan
from services.worker.device.assist.crew import AssistCrew
from services.worker.device.assist.orders import AssistedImage

PATIENCE_NS = 20_000_000  # for one product; then its layer is waited for


@dataclass(slots=True)
class Assistance:
    """What helpers can do in one step.

    Attributes:
        lines: of the adapters that they can read.
        of_token: int32: line of each new token.
        took_ns: what was waited for them until now.
    """

    crew: AssistCrew
    lines: Set[int]
    of_token: torch.Tensor
    took_ns: int = 0
    _rows: dict[frozenset[int], torch.Tensor] = field(default_factory=dict)

    def add(
        self, layer: int, site: int, x: torch.Tensor, y: torch.Tensor, lines: frozenset[int]
    ) -> bool:
        """Let them add what the adapters of these lines add to a site's output.

        Args:
            x: ``[num_tokens, num_in]``.
            y: ``[num_tokens, num_out]``: rows of these lines are rounded once.

        Returns:
            False: they did not; nothing was added, and they will not do any more in this step.
        """
        started_ns = time.monotonic_ns()
        if (rows := self._rows.get(lines)) is None:
            wanted = np.isin(self.of_token.numpy(), list(lines))
            rows = self._rows[lines] = torch.from_numpy(np.flatnonzero(wanted))
        self.crew.submit(layer, site, x[rows], self.of_token[rows])
        added = self.crew.collect(PATIENCE_NS)
        if added is not None:
            y[rows] = (y[rows].float() + added).to(y.dtype)
        self.took_ns += time.monotonic_ns() - started_ns
        return added is not None


def assist(crew: AssistCrew, plan: StepPlan, images: dict[int, ImageEntry]) -> Assistance | None:
    """Begin a step with helpers; None: there are none now, or they cannot do so much.

    Args:
        images: by line.
    """
    of_token = np.repeat(plan.adapters, plan.lengths)
    if np.isin(of_token, list(plan.assists)).sum() > crew.tokens_max:
        return None
    assisted = {
        line: AssistedImage(
            images[line].adapter_hash,
            images[line].ranks,
            source.pages,
            source.generations,
            source.epoch,
        )
        for line, source in plan.assists.items()
    }
    if not crew.begin(assisted):
        return None
    return Assistance(crew, assisted.keys(), torch.from_numpy(of_token))


def without(segments: Segments, lines: frozenset[int]) -> Segments:
    """The segments of all others.

    >>> without(Segments(np.array([0, 2, 3], np.int32), np.array([4, 1], np.int32)), {4}).lines
    array([-1,  1], dtype=int32)
    """
    kept = np.where(np.isin(segments.lines, list(lines)), np.int32(NO_ADAPTER), segments.lines)
    return Segments(segments.starts, kept)
