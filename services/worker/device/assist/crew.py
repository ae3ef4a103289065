"""The crew of helpers: who is in it, and what a pass asks of it."""

import logging
import pickle
import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from services.worker.device.assist.channel import LETTER_BYTES_MAX, SPEC_LETTER, Channel, Order
from services.worker.device.assist.handoff import Handoff
from services.worker.device.assist.keeper import Keeper
from services.worker.device.assist.orders import ArenaFile, AssistedImage, Pass, Spec
from services.worker.device.assist.process import HelperProcess
from services.worker.device.assist.restarts import DELAY_NS
from services.worker.device.assist.sharing import share_rows
from shared.arena import Arena

log = logging.getLogger(__name__)


class Share(NamedTuple):
    """A helper's rows of an order."""

    helper: HelperProcess
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Summoned:
    """Helpers that are with a pass.

    Attributes:
        letter: number of the one that announced it.
        rows_max: that one of them is given before another one helps.
    """

    helpers: list[HelperProcess]
    letter: int
    rows_max: int


class AssistCrew:
    """Computes what adapters add to the rows of a pass, from the arena's pages, beside it.

    How a pass begins, is asked for and ends is its kind's. `attach`, `detach`, `check` and `close`
    may be called by other threads than those of passes.

    Args:
        num_helpers: processes, one a core.
        restart_ns: until what was lost twice is replaced; after that longer and longer.
    """

    def __init__(
        self,
        spec: Spec,
        num_helpers: int,
        make_handoff: Callable[[Channel], Handoff],
        restart_ns: int = DELAY_NS,
    ) -> None:
        assert spec.sites and num_helpers > 0 and spec.tokens_max > 0
        self._spec = spec
        self._attached = threading.Lock()
        self._file: ArenaFile | None = None
        self._letter = SPEC_LETTER
        self._number = 0  # of the last order
        self._keeper = Keeper(spec, num_helpers, make_handoff, restart_ns)

    @property
    def num_ready(self) -> int:
        """Helpers that can work."""
        return len(self._keeper.ready())

    @property
    def tokens_max(self) -> int:
        """Rows of a `submit`."""
        return self._spec.tokens_max

    @property
    def num_tokens(self) -> int:
        """Rows that those who can work take without one of them taking more than its share."""
        return min(sum(each.rows_max for each in self._keeper.ready()), self.tokens_max)

    @property
    def pids(self) -> list[int]:
        """Of helpers that can work."""
        return [helper.process.pid for helper in self._keeper.ready()]

    def await_ready(self, num_helpers: int, timeout_ns: int) -> bool:
        """Wait until so many helpers can work; whether they can."""
        return self._keeper.await_ready(num_helpers, timeout_ns)

    def attach(self, arena: Arena, epoch: int) -> None:
        """Read this arena, of connection `epoch`, in passes that begin from now on."""
        with self._attached:
            self._file = ArenaFile(epoch, arena.path, arena.identity)

    def detach(self) -> None:
        """There is no arena: no pass is assisted."""
        with self._attached:
            self._file = None

    def _summon(self, images: dict[int, AssistedImage]) -> Summoned | None:
        """Tell helpers of a pass.

        Args:
            images: by line, of all that are to be assisted.

        Returns:
            None: there is no helper now, or an image is of another connection.
        """
        with self._attached:
            file = self._file
        helpers = self._keeper.ready()
        if file is None or not helpers:
            return None
        if any(image.epoch != file.epoch for image in images.values()):
            return None
        letter = pickle.dumps(Pass(file, images))
        if len(letter) > LETTER_BYTES_MAX:
            log.warning("more images than helpers can be sent", extra={"images": len(images)})
            return None
        self._letter += 1
        helpers = [each for each in helpers if each.summon(self._letter, letter)]
        if not helpers:
            return None
        rows_max = statistics.median_low([each.rows_max for each in helpers])
        return Summoned(helpers, self._letter, rows_max)

    def _give(
        self, to: Summoned, layer: int, site: int, x: torch.Tensor, lines: torch.Tensor
    ) -> list[Share]:
        """Give helpers an order; never waits.

        Args:
            x: ``[num_rows, num_in]``, of the model's dtype.
            lines: int32 ``[num_rows]``: of the images of this pass.
        """
        spec, num_rows = self._spec, len(x)
        assert x.dtype == spec.dtype and x.shape == (num_rows, spec.num_in(site))
        assert num_rows <= spec.tokens_max
        assert lines.dtype == torch.int32 and lines.shape == (num_rows,)
        self._number += 1
        x, lines = x.contiguous(), lines.contiguous()
        given = []
        cuts = share_rows(num_rows, to.rows_max, len(to.helpers))
        for helper, (first, last) in zip(to.helpers, cuts, strict=False):
            order = Order(to.letter, layer, site, last - first)
            helper.handoff.put(self._number, order, x[first:last], lines[first:last])
            helper.see_awake()
            given.append(Share(helper, first, last))
        return given

    def check(self) -> None:
        """See that lost helpers are replaced.

        Raises:
            KeeperGone: they are not.
        """
        self._keeper.check()

    def close(self) -> None:
        """End all helpers."""
        self._keeper.close()
