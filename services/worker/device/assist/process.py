"""One helper, as the worker sees it."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path

import services
from services.worker.device.assist.channel import (
    IDLE_NS,
    READY,
    SPEC_LETTER,
    Channel,
    ChannelShape,
    Outcome,
)
from services.worker.device.assist.handoff import Handoff
from services.worker.device.assist.orders import Spec
from services.worker.device.assist.waiting import wait_for

_CHILD = "services.worker.device.assist.helper"
_PACKAGES = str(Path(services.__path__[0]).parent)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


def spec_shape(spec: Spec) -> ChannelShape:
    """Of the channel of a helper that works for this."""
    return ChannelShape(
        spec.tokens_max, spec.in_bytes, spec.out_bytes, spec.orders_max, spec.passes_max
    )


@dataclass(slots=True, eq=False)
class HelperProcess:
    """Attributes:
    rows_max: that its core is given before another one helps; 0: it is not ready yet.
    is_gone: it has ended, or will in a moment.
    sent_at_ns: when it was last sent something.
    """

    process: subprocess.Popen[bytes]
    channel: Channel
    handoff: Handoff
    started_at_ns: int
    rows_max: int = 0
    is_gone: bool = False
    sent_at_ns: int = 0
    _waking: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, spec: Spec, make_handoff: Callable[[Channel], Handoff]) -> "HelperProcess":
        """Begin its process, which lives no longer than the thread that calls this.

        Raises:
            OSError: there is no memory for it, or no process.
            SymphonyError: the device cannot use its memory.
        """
        shape = spec_shape(spec)
        channel = Channel.create(shape)
        channel.post(SPEC_LETTER, pickle.dumps(spec))
        path = [_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
        numbers = os.getpid(), channel.file_number, *astuple(shape)
        try:
            handoff = make_handoff(channel)
            process = subprocess.Popen(
                [sys.executable, "-m", _CHILD, *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(channel.file_number,),
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(path)},
                start_new_session=True,  # Ctrl-C is for the worker
            )
        finally:
            channel.close_file()
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return cls(process, channel, handoff, time.monotonic_ns())

    @property
    def is_ready(self) -> bool:
        """Whether it can work."""
        return self.rows_max > 0 and not self.is_gone

    def hear(self) -> bool:
        """What it says has come; False: it has ended."""
        assert self.process.stdout is not None
        said = os.read(self.process.stdout.fileno(), READY.size)
        if len(said) == READY.size:
            self.rows_max = max(READY.unpack(said)[0], 1)
        return bool(said)

    def summon(self, number: int, letter: bytes) -> bool:
        """Wake it for a pass; False: it is gone."""
        self.channel.post(number, letter)
        self.channel.is_awake = True
        self.wake()
        return not self.is_gone

    def dismiss(self) -> None:
        """The pass is over."""
        self.channel.is_awake = False

    def see_awake(self) -> None:
        """To be called behind every order: a helper that got nothing for long went to sleep, or
        is just about to."""
        now_ns = time.monotonic_ns()  # behind the word: until then it saw none for less long
        if now_ns - self.sent_at_ns > IDLE_NS // 2:
            self.wake()
        self.sent_at_ns = now_ns

    def await_outcome(self, number: int, until_ns: int) -> Outcome | None:
        """How an order ended; None: it is late, or gone."""
        channel = self.channel

        def is_over() -> bool:
            return self.is_gone or channel.outcome(number) is not None

        wait_for(is_over, until_ns, channel.done)
        return channel.outcome(number)

    def give_up(self) -> None:
        """End it, even if it stands still: what it writes from now on is in memory that no process
        reads."""
        self.is_gone = True
        with suppress(ProcessLookupError):
            self.process.kill()

    def reap(self) -> None:
        """Wait for the end of one that was abandoned, or has ended."""
        self.give_up()
        self.process.wait()
        with self._waking:  # else a byte might go to whatever gets the number of the closed file
            for stream in (self.process.stdin, self.process.stdout):
                assert stream is not None
                stream.close()

    def wake(self) -> None:
        """See that it does not sleep."""
        stdin = self.process.stdin
        assert stdin is not None
        self.sent_at_ns = time.monotonic_ns()
        with self._waking:
            if stdin.closed:
                return
            try:
                os.write(stdin.fileno(), b"\0")
            except BlockingIOError:  # it has not yet read many others
                return
            except BrokenPipeError:
                self.is_gone = True
