"""Helpers beside a model on the CPU: a pass waits for what they compute."""

import logging
import time

import torch

from services.worker.device.assist.channel import Outcome
from services.worker.device.assist.crew import AssistCrew, Share, Summoned
from services.worker.device.assist.handoff import HostHandoff, joined
from services.worker.device.assist.orders import AssistedImage, Spec
from services.worker.device.assist.restarts import DELAY_NS

log = logging.getLogger(__name__)


class HostCrew(AssistCrew):
    """A pass is `begin`, `submit` and `collect` in turn, and `end`, by one thread. None of it waits
    but `collect`, which has an end.
    """

    def __init__(self, spec: Spec, num_helpers: int, restart_ns: int = DELAY_NS) -> None:
        super().__init__(spec, num_helpers, HostHandoff, restart_ns)
        self._whole = torch.empty(spec.out_bytes // 4)  # what several gave
        self._pass: Summoned | None = None
        self._shares: list[Share] = []  # of the order under way
        self._num_out = 0  # columns of what it gives

    def begin(self, images: dict[int, AssistedImage]) -> bool:
        """A pass begins.

        Args:
            images: by line, of all that are to be assisted.

        Returns:
            False: none is: there is no helper now, or an image is of another connection.
        """
        self.end()
        self._pass = self._summon(images)
        return self._pass is not None

    def submit(self, layer: int, site: int, x: torch.Tensor, lines: torch.Tensor) -> None:
        """Ask for what adapters add to these rows; never waits.

        Args:
            x: ``[num_rows, num_in]``, of the model's dtype: copied before this returns.
            lines: int32 ``[num_rows]``: of the images of this pass.
        """
        if self._pass is not None:
            self._num_out = self._spec.num_out(site)
            self._shares = self._give(self._pass, layer, site, x, lines)

    def collect(self, timeout_ns: int) -> torch.Tensor | None:
        """What the adapters add to the rows of the last `submit`: float32 ``[num_rows, num_out]``,
        good until the next one.

        Returns:
            None: it is not there in time, a page is not the promised one, or a helper died. Then
            this pass is not assisted any more, and helpers that are late are replaced.
        """
        if self._pass is None:
            return None
        until_ns = time.monotonic_ns() + timeout_ns
        for helper, _, _ in self._shares:
            if helper.await_outcome(self._number, until_ns) is not Outcome.DONE:
                self._abandon(is_late=time.monotonic_ns() >= until_ns)
                return None
        if not self._shares:
            return torch.empty(0, self._num_out)
        parts = []
        for helper, first, last in self._shares:
            assert isinstance(helper.handoff, HostHandoff)
            parts.append(helper.handoff.result(last - first, self._num_out))
        return joined(parts, self._whole)

    def end(self) -> None:
        """The pass is over, whatever was not collected."""
        for helper in [] if self._pass is None else self._pass.helpers:
            helper.dismiss()
        self._pass, self._shares = None, []

    def _abandon(self, *, is_late: bool) -> None:
        """The pass is not assisted any more. Who has not answered yet will, unless it is late."""
        for helper, _, _ in self._shares:
            has_answered = helper.channel.outcome(self._number) is not None
            if is_late and not has_answered:
                log.warning("a helper of adapters is late", extra={"pid": helper.process.pid})
                helper.give_up()
        self.end()
