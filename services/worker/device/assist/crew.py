"""The crew of helpers: who is in it, and what a pass asks of it."""

import logging
import pickle
import statistics
import threading
import time
from collections.abc import Sequence

import torch

from kernels.sgmv.interface import Site
from services.worker.device.assist.channel import LETTER_BYTES_MAX, SPEC_LETTER, Order, Outcome
from services.worker.device.assist.handoff import joined
from services.worker.device.assist.keeper import Keeper
from services.worker.device.assist.orders import ArenaFile, AssistedImage, Pass, Spec
from services.worker.device.assist.process import HelperProcess
from services.worker.device.assist.restarts import DELAY_NS
from services.worker.device.assist.sharing import share_rows
from shared.arena import Arena
from shared.messages import LoraCard

log = logging.getLogger(__name__)


class AssistCrew:
    """Computes what adapters add to the rows of a pass, from the arena's pages, beside it.

    A pass is `begin`, `submit` and `collect` in turn, and `end`, by one thread. None of it waits
    but `collect`, which has an end. `attach`, `detach`, `check` and `close` may be called by
    others.

    Args:
        sites: by the numbers that `submit` calls them by. Memory is reserved for the widest of
            them, so one as wide as a vocabulary is better left out.
        num_helpers: processes, one a core.
        tokens_max: rows of a `submit`.
        rows_max: that one core is given before another one helps; None: each helper measures it
            when it starts.
        restart_ns: until what was lost twice is replaced; after that longer and longer.
    """

    def __init__(
        self,
        card: LoraCard,
        dtype: torch.dtype,
        sites: Sequence[Site],
        num_helpers: int,
        tokens_max: int,
        rows_max: int | None = None,
        restart_ns: int = DELAY_NS,
    ) -> None:
        assert sites and num_helpers > 0 and tokens_max > 0
        self._spec = Spec(card, dtype, tuple(sites), tokens_max, rows_max)
        self._attached = threading.Lock()
        self._file: ArenaFile | None = None
        self._letter = SPEC_LETTER
        self._number = 0  # of the last order
        self._pass: list[HelperProcess] = []
        self._rows_max = 1  # of a helper of this pass
        self._shares: list[tuple[HelperProcess, int, int]] = []  # of the order under way
        self._num_out = 0  # columns of what it gives
        self._whole = torch.empty(self._spec.out_bytes // 4)  # what several gave
        self._keeper = Keeper(self._spec, num_helpers, restart_ns)

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
        """There is no arena: nobody is assisted."""
        with self._attached:
            self._file = None

    def begin(self, images: dict[int, AssistedImage]) -> bool:
        """A pass begins.

        Args:
            images: by line, of all that are to be assisted.

        Returns:
            False: nobody is: there is no helper now, or an image is of another connection.
        """
        self.end()
        with self._attached:
            file = self._file
        helpers = self._keeper.ready()
        if file is None or not helpers:
            return False
        if any(image.epoch != file.epoch for image in images.values()):
            return False
        letter = pickle.dumps(Pass(file, images))
        if len(letter) > LETTER_BYTES_MAX:
            log.warning("more images than helpers can be told of", extra={"images": len(images)})
            return False
        self._letter += 1
        self._pass = [each for each in helpers if each.summon(self._letter, letter)]
        if self._pass:
            self._rows_max = statistics.median_low([each.rows_max for each in self._pass])
        return bool(self._pass)

    def submit(self, layer: int, site: int, x: torch.Tensor, lines: torch.Tensor) -> None:
        """Ask for what adapters add to these rows; never waits.

        Args:
            x: ``[num_rows, num_in]``, of the model's dtype: copied before this returns.
            lines: int32 ``[num_rows]``: of the images of this pass.
        """
        spec, num_rows = self._spec, len(x)
        assert x.dtype == spec.dtype and x.shape == (num_rows, spec.num_in(site))
        assert num_rows <= spec.tokens_max
        assert lines.dtype == torch.int32 and lines.shape == (num_rows,)
        if not self._pass:
            return
        self._number += 1
        self._num_out = spec.num_out(site)
        x, lines = x.contiguous(), lines.contiguous()
        self._shares = []
        shares = share_rows(num_rows, self._rows_max, len(self._pass))
        for helper, (first, last) in zip(self._pass, shares, strict=False):
            order = Order(self._letter, layer, site, last - first)
            helper.handoff.put(self._number, order, x[first:last], lines[first:last])
            helper.see_awake()
            self._shares.append((helper, first, last))

    def collect(self, timeout_ns: int) -> torch.Tensor | None:
        """What the adapters add to the rows of the last `submit`: float32 ``[num_rows, num_out]``,
        good until the next one.

        Returns:
            None: it is not there in time, a page is not the promised one, or a helper died. Then
            this pass is not assisted any more, and helpers that are late are replaced.
        """
        if not self._pass:
            return None
        until_ns = time.monotonic_ns() + timeout_ns
        for helper, _, _ in self._shares:
            if helper.await_outcome(self._number, until_ns) is not Outcome.DONE:
                self._abandon(is_late=time.monotonic_ns() >= until_ns)
                return None
        if not self._shares:
            return torch.empty(0, self._num_out)
        parts = [
            helper.handoff.result(last - first, self._num_out)
            for helper, first, last in self._shares
        ]
        return joined(parts, self._whole)

    def end(self) -> None:
        """The pass is over, whatever was not collected."""
        for helper in self._pass:
            helper.dismiss()
        self._pass, self._shares = [], []

    def _abandon(self, *, is_late: bool) -> None:
        """The pass is not assisted any more. Who has not answered yet will, unless it is late."""
        for helper, _, _ in self._shares:
            has_answered = helper.channel.outcome(self._number) is not None
            if is_late and not has_answered:
                log.warning("a helper of adapters is late", extra={"pid": helper.process.pid})
                helper.give_up()
        self.end()

    def check(self) -> None:
        """See that lost helpers are replaced.

        Raises:
            KeeperGone: they are not.
        """
        self._keeper.check()

    def close(self) -> None:
        """End all helpers."""
        self._keeper.close()
