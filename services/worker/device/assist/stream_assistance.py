"""Helpers in a step of a device whose host is ahead of it."""

from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.sgmv import DeviceSegments
from kernels.sgmv.interface import NO_ADAPTER
from services.worker.core.step import ImageEntry, Ints, StepPlan
from services.worker.device.assist.assistance import assisted_images, rows_of
from services.worker.device.assist.stream_crew import StreamCrew, StreamPass
from services.worker.device.base.step import AnySegments
from services.worker.device.base.upload import upload


@dataclass(frozen=True, slots=True)
class _Away:
    """Lines that helpers take in some layers.

    Attributes:
        rows: int64, on the device: tokens of theirs.
        of_row: int32, in host memory: line of each.
        lines: int32, on the device.
    """

    rows: torch.Tensor
    of_row: torch.Tensor
    lines: torch.Tensor


@dataclass(slots=True)
class StreamAssistance:
    """What helpers do in a step that is being launched. Whether they did is known at its end.

    Attributes:
        of_token: line of each new token.
    """

    crew: StreamCrew
    begun: StreamPass
    lines: Set[int]
    of_token: Ints
    device: torch.device
    _away: dict[frozenset[int], _Away] = field(default_factory=dict)

    def add(
        self, layer: int, site: int, x: torch.Tensor, y: torch.Tensor, lines: frozenset[int]
    ) -> bool:
        away = self._of(lines)
        added = self.crew.add(self.begun, layer, site, x[away.rows], away.of_row)
        y[away.rows] = (y[away.rows].float() + added).to(y.dtype)
        return True

    def rest(self, segments: AnySegments, lines: frozenset[int]) -> AnySegments:
        assert isinstance(segments, DeviceSegments)
        is_theirs = torch.isin(segments.lines, self._of(lines).lines)
        kept = segments.lines.masked_fill(is_theirs, NO_ADAPTER)
        return DeviceSegments(segments.starts, kept)

    def finish(self) -> int | None:
        """The step is over: how long it waited for helpers, ns; None: some did not do theirs."""
        return self.crew.finish(self.begun)

    def abandon(self) -> None:
        """The step was not launched to its end."""
        self.crew.abandon(self.begun)

    def _of(self, lines: frozenset[int]) -> _Away:
        """Its numbers are uploaded once a step."""
        if lines not in self._away:
            rows = rows_of(self.of_token, lines)
            inputs = [rows.astype(np.int32), np.array(sorted(lines), np.int32)]
            there, its_lines = upload(inputs, self.device)
            of_row = torch.from_numpy(self.of_token[rows])
            self._away[lines] = _Away(there.long(), of_row, its_lines)
        return self._away[lines]


def stream_assist(
    crew: StreamCrew, plan: StepPlan, images: dict[int, ImageEntry], device: torch.device
) -> StreamAssistance | None:
    """Begin a step with helpers; None: there are none now, or they cannot do so much.

    Args:
        images: by line.
    """
    of_token = np.repeat(plan.adapters, plan.lengths)
    if len(rows_of(of_token, plan.assists.keys())) > crew.tokens_max:
        return None
    begun = crew.begin(assisted_images(plan, images))
    if begun is None:
        return None
    return StreamAssistance(crew, begun, plan.assists.keys(), of_token, device)
