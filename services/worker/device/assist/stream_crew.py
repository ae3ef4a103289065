"""Helpers beside a device whose host is ahead of it: their results are awaited in stream order."""

import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from services.worker.device.assist.crew import AssistCrew, Summoned
from services.worker.device.assist.device_stream import DeviceStream
from services.worker.device.assist.handoff import StreamHandoff
from services.worker.device.assist.orders import AssistedImage, Spec
from services.worker.device.assist.process import HelperProcess
from services.worker.device.assist.restarts import DELAY_NS
from services.worker.device.assist.watch import Watch

ABANDONED_KEPT = 16


@dataclass(slots=True, eq=False)
class StreamPass:
    """A pass that helpers are with.

    Attributes:
        last: order of it that each helper was given last.
        waits: where the stream waits for each product, and where it goes on.
    """

    summoned: Summoned
    last: dict[HelperProcess, int] = field(default_factory=dict)
    waits: list[tuple[Any, Any]] = field(default_factory=list)


class StreamCrew(AssistCrew):
    """A pass is `begin`, then `add` while it is launched, by one thread, none of which waits; then
    `finish`, once its end was awaited, or `abandon`.

    Args:
        patience_ns: for one product; then its helper is replaced, and its passes were in vain.
    """

    def __init__(
        self,
        spec: Spec,
        num_helpers: int,
        stream: DeviceStream,
        device: torch.device,
        patience_ns: int,
        restart_ns: int = DELAY_NS,
    ) -> None:
        assert spec.is_streamed
        super().__init__(spec, num_helpers, partial(StreamHandoff, stream=stream), restart_ns)
        self._stream = stream
        self._device = device
        self._watch = Watch(patience_ns)
        self._changed = threading.Lock()  # guards the rest
        self._running: list[StreamPass] = []
        self._abandoned: deque[StreamPass] = deque(maxlen=ABANDONED_KEPT)

    def begin(self, images: dict[int, AssistedImage]) -> StreamPass | None:
        """A pass is launched next.

        Args:
            images: by line, of all that are to be assisted.

        Returns:
            None: none is: there is no helper now, an image is of another connection, or too many
            passes are in flight.
        """
        of_pass = self._spec.orders_max // self._spec.passes_max
        with self._changed:  # else the end of another one might dismiss who was just summoned
            oldest = min((each.summoned.letter for each in self._running), default=self._letter + 1)
            if self._letter + 1 - oldest >= self._spec.passes_max:
                return None
            summoned = self._summon(images)
            if summoned is None:
                return None
            begun = StreamPass(summoned)
            self._running.append(begun)
            self._watch.begin(summoned.helpers, self._number + of_pass)
        return begun

    def add(
        self, begun: StreamPass, layer: int, site: int, x: torch.Tensor, lines: torch.Tensor
    ) -> torch.Tensor:
        """What the adapters add to these rows, to what is launched from now on: float32
        ``[num_rows, num_out]`` on the device.

        Args:
            x: ``[num_rows, num_in]``, of the model's dtype, on the device; one row at least.
            lines: int32 ``[num_rows]``, in host memory: of the images of this pass.
        """
        shares = self._give(begun.summoned, layer, site, x, lines)
        result = torch.empty(len(x), self._spec.num_out(site), device=self._device)
        waits = self._stream.mark()
        for helper, first, last in shares:
            assert isinstance(helper.handoff, StreamHandoff)
            helper.handoff.take(self._number, result[first:last])
            begun.last[helper] = self._number
        begun.waits.append((waits, self._stream.mark()))
        return result

    def finish(self, begun: StreamPass) -> int | None:
        """The stream is past a pass: how long it waited for helpers, ns.

        Returns:
            None: some of what it took was not what was asked for.
        """
        letter = begun.summoned.letter
        are_done = all(
            helper.channel.has_done(number, letter) and not helper.is_gone
            for helper, number in begun.last.items()
        )
        self._end(begun)
        if not are_done:
            return None
        return sum(self._stream.between_ns(first, last) for first, last in begun.waits)

    def abandon(self, begun: StreamPass) -> None:
        """A pass was not launched to its end, and what was may be in flight: nothing waits."""
        self._watch.abandon(begun.summoned.helpers)
        self._abandoned.append(begun)  # its memory may still be copied from and to
        self._end(begun)

    def check(self) -> None:
        super().check()
        self._watch.check()

    def close(self) -> None:
        self._watch.close()
        super().close()

    def _end(self, over: StreamPass) -> None:
        with self._changed:
            if over not in self._running:
                return
            self._running.remove(over)
            needed = {helper for each in self._running for helper in each.summoned.helpers}
            free = [helper for helper in over.summoned.helpers if helper not in needed]
            self._watch.end(free)
            for helper in free:
                helper.dismiss()
