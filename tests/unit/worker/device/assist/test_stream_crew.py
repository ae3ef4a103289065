"""Helpers beside a device whose host is ahead of it: real processes, and a stream that is a thread,
or a GPU's where there is one.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from services.worker.device.assist.channel import Channel, ChannelShape, Order, Outcome, over
from services.worker.device.assist.cuda_stream import CudaStream
from services.worker.device.assist.device_stream import DeviceStream
from services.worker.device.assist.stream_crew import StreamCrew, StreamPass
from services.worker.device.assist.watch import Watch
from services.worker.device.lora.tables import segments_of
from shared.arena import PageState
from tests.unit.worker.device.assist.streams import LateStream
from tests.unit.worker.device.assist.test_assist import (
    FP32,
    HEAD,
    LONG_NS,
    NUM_LAYERS,
    OUT,
    QKV,
    TOKENS_MAX,
    Stored,
    assert_close,
)
from tests.unit.worker.device.copying.copiers import CUDA

PATIENCE_NS = 60_000_000_000  # however slow a machine is, nobody is late who works


@dataclass
class Ahead:
    """A crew, and what it reads.

    Attributes:
        synchronize: waits for the stream that its passes are launched on.
    """

    crew: StreamCrew
    stored: Stored
    device: torch.device
    synchronize: Callable[[], None]

    def begin(self) -> StreamPass:
        assert self.crew.await_ready(2, LONG_NS), "helpers are not replaced"
        begun = self.crew.begin(self.stored.images)
        assert begun is not None
        return begun

    def launch(
        self,
        begun: StreamPass,
        layer: int,
        site: int = QKV,
        num_rows: int = TOKENS_MAX,
        seed: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What will be there, and what should be."""
        x = self.stored.rows(site, num_rows, seed)
        lines = (torch.arange(num_rows) % 3).int()
        got = self.crew.add(begun, layer, site, x.to(self.device), lines)
        return got, self.stored.want(layer, site, x, segments_of(lines.numpy()))

    def finish(self, begun: StreamPass) -> int | None:
        self.synchronize()
        return self.crew.finish(begun)

    def check_works(self) -> None:
        begun = self.begin()
        launched = [
            self.launch(begun, layer, site, 1 + 13 * layer, seed=layer)
            for layer in range(NUM_LAYERS)
            for site in (QKV, OUT, HEAD)
        ]
        assert self.finish(begun) is not None
        for got, want in launched:
            assert_close(got.cpu(), want)


@pytest.fixture(scope="module", params=["late", CUDA])
def ahead(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ahead]:
    stored = Stored(tmp_path_factory.mktemp("ahead") / "arena", FP32)
    late = LateStream()
    stream: DeviceStream = late
    device, synchronize = torch.device("cpu"), late.synchronize
    if request.param == "cuda":
        device, synchronize = torch.device("cuda"), torch.cuda.synchronize
        stream = CudaStream(torch.cuda.default_stream())
    spec = replace(stored.spec, is_streamed=True)
    crew = StreamCrew(spec, 2, stream, device, PATIENCE_NS, restart_ns=1_000_000)
    crew.attach(stored.arena, epoch=1)
    yield Ahead(crew, stored, device, synchronize)
    crew.close()


def test_two_passes_are_launched_whole_before_their_first_answer(ahead: Ahead) -> None:
    """Orders of all layers and sites, and rows for one helper and for two."""
    begun = [ahead.begin()]
    pids = ahead.crew.pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    begun.append(ahead.begin())
    launched = [
        ahead.launch(each, layer, site, num_rows, seed=layer + 10 * at)
        for at, each in enumerate(begun)
        for layer in range(NUM_LAYERS)
        for site, num_rows in ((QKV, TOKENS_MAX), (OUT, 1), (HEAD, 12))
    ]
    assert ahead.crew.begin(ahead.stored.images) is None, "the letters have two places"
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    took_ns = [ahead.finish(each) for each in begun]
    assert all(each is not None and each > 0 for each in took_ns)
    for got, want in launched:
        assert_close(got.cpu(), want)


def test_a_page_that_was_not_there_in_a_middle_layer_is_told_at_the_end(ahead: Ahead) -> None:
    arena, image = ahead.stored.arena, ahead.stored.images[2]
    page, generation = image.pages[1][0], image.generations[1][0]
    arena.set_word(page, generation, PageState.FILLING)
    first = ahead.begin()
    for layer in range(NUM_LAYERS):
        ahead.launch(first, layer)
    second = ahead.begin()
    got, want = ahead.launch(second, 0)
    assert ahead.finish(first) is None
    assert ahead.finish(second) is not None, "its own pages were there"
    assert_close(got.cpu(), want)
    arena.set_word(page, generation, PageState.READY)
    ahead.check_works()


def test_a_helper_that_is_killed_keeps_no_stream_waiting(ahead: Ahead) -> None:
    begun = ahead.begin()
    os.kill(ahead.crew.pids[1], signal.SIGKILL)
    for layer in range(NUM_LAYERS):
        ahead.launch(begun, layer)
    assert ahead.finish(begun) is None
    ahead.check_works()


def test_a_helper_that_stands_still_is_replaced(
    ahead: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = ahead.begin()
    pids = ahead.crew.pids
    os.kill(pids[0], signal.SIGSTOP)
    monkeypatch.setattr(ahead.crew._watch, "_patience_ns", 30_000_000)
    for layer in range(NUM_LAYERS):
        ahead.launch(begun, layer)
    assert ahead.finish(begun) is None
    monkeypatch.undo()
    ahead.check_works()
    assert pids[0] not in ahead.crew.pids


def test_who_sleeps_over_an_order_is_woken(ahead: Ahead) -> None:
    begun = ahead.begin()
    for helper in begun.summoned.helpers:
        helper.channel.is_awake = False  # it goes to sleep, as it does when it has long been idle
        helper.sent_at_ns = time.monotonic_ns() + LONG_NS  # and whoever gives it one does not see
    got, want = ahead.launch(begun, 1)
    assert ahead.finish(begun) is not None
    assert_close(got.cpu(), want)


def test_a_launch_that_fails_leaves_nobody_waiting(ahead: Ahead) -> None:
    begun = ahead.begin()
    os.kill(ahead.crew.pids[0], signal.SIGSTOP)
    ahead.launch(begun, 0)
    ahead.crew.abandon(begun)
    ahead.synchronize()
    ahead.check_works()


class Dying:
    """A process that was killed, and lives a little longer."""

    pid = 0

    def __init__(self) -> None:
        self.is_dead = False

    def poll(self) -> int | None:
        return -9 if self.is_dead else None


class Lost:
    """As the watch sees a helper."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.process, self.is_gone = channel, Dying(), True

    def give_up(self) -> None:
        self.is_gone = True


def test_what_a_helper_writes_in_its_last_moment_holds_nobody_up() -> None:
    channel = Channel.create(ChannelShape(1, 8, 8))
    channel.close_file()
    helper = Lost(channel)
    watch = Watch(PATIENCE_NS)
    watch.begin([helper], 9)  # type: ignore[list-item]
    _await(lambda: channel.outcome(9) is not None)
    channel.answer(3, 2, Outcome.DONE)
    _await(lambda: channel.outcome(9) is Outcome.REFUSED)
    helper.process.is_dead = True
    watch.check()
    watch.close()
    watch.check()


def test_orders_of_a_pass_stand_side_by_side() -> None:
    channel = Channel.create(ChannelShape(4, 8, 8, orders_max=3))
    channel.close_file()
    orders = {number: Order(2, number, 1, 2) for number in (7, 8, 9)}
    for number, order in orders.items():
        channel.write_order(number, order, torch.tensor([number, -1]).int().numpy())
    for number, order in orders.items():
        assert channel.read_order(number) == order
        assert channel.read_lines(number, 2).tolist() == [number, -1]
    assert over(7) > over(6) | Outcome.REFUSED


def _await(is_there: object) -> None:
    ends_at = time.monotonic() + LONG_NS / 1e9
    while not is_there():  # type: ignore[operator]
        assert time.monotonic() < ends_at
        time.sleep(0.001)
