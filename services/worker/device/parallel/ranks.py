"""The other ranks of a model, as the first one has them: processes that get each step's plan.

The first rank is the worker. It plans, samples and talks to the kvstore; the others compute the
same pass on their part of the weights and of each page. A rank that is gone, does not answer in
time or leaves a pass takes the worker with it; and each ends when the worker does: by the kernel,
by the end of its socket, or by a sum that fails.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import services
from services.worker.core.step import Ints, StepPlan
from services.worker.device.base.step import StepContext
from services.worker.device.layers import Mode
from services.worker.device.parallel.copier import Order, Slices
from services.worker.device.parallel.group import TIMEOUT_S, Group
from shared.errors import ConfigError
from shared.runtime.dying import die

CHILD = "services.worker.rank"
PACKAGES = str(Path(services.__path__[0]).parent)
LOAD_S = 1800.0  # a rank's weights
ENDED = "has ended: its error is in the log"


class RankLost(Exception):
    """A rank is gone, hangs, or is at another place than the others: the worker is to end."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """What a rank loads.

    Attributes:
        num_threads: that it computes with.
    """

    model_id: str
    source: str
    dtype: str
    layers: Mode
    rank: int
    num_ranks: int
    num_threads: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What ranks must have in common.

    Attributes:
        forward: class that computes their passes: each has its own shapes of what is summed.
    """

    fingerprint: str
    forward: str


@dataclass(frozen=True, slots=True)
class Begin:
    """All ranks have loaded.

    Attributes:
        folder: by which they meet.
        timeout_s: of each sum.
    """

    folder: Path
    num_pages: int
    timeout_s: float


@dataclass(slots=True)
class _Rank:
    """Attributes:
    steps, copies: a rank computes while it copies.
    """

    number: int
    process: subprocess.Popen[bytes]
    steps: Connection
    copies: Connection


@dataclass(slots=True, eq=False)
class Ranks:
    """All ranks but the first.

    Args:
        spec: the first rank's.
        on_lost: called with the reason, from a thread, when a rank has ended by itself.
        timeout_s: for an answer, and for a sum.
    """

    spec: RankSpec
    on_lost: Callable[[str], Any] = die
    timeout_s: float = TIMEOUT_S
    others: list[_Rank] = field(default_factory=list)
    _lost: str = ""
    _is_closing: bool = False
    _copying: threading.Lock = field(default_factory=threading.Lock)

    @property
    def num_ranks(self) -> int:
        return self.spec.num_ranks

    def start(self) -> None:
        """Start their processes, which live no longer than the calling thread. They import what
        they need while the first rank loads, and load when `meet` is called: so it is the first one
        that says what is wrong with a model.
        """
        self.others += [self._start(number) for number in range(1, self.num_ranks)]

    def meet(self, loaded: Loaded, num_pages: int) -> Group:
        """Have them load; returns when every rank can take steps.

        Args:
            loaded: by the first rank.

        Returns:
            By which the first rank sums.

        Raises:
            ConfigError: a rank could not load, or loaded something else.
        """
        for other in self.others:
            self._send(other, replace(self.spec, rank=other.number))
        with tempfile.TemporaryDirectory(prefix="symphony-ranks-") as folder:
            for other in self.others:
                found = self._receive(other)
                if found != loaded:
                    raise self._failed(other, f"has loaded {found}, the first one {loaded}")
                self._send(other, Begin(Path(folder), num_pages, self.timeout_s))
            try:
                group = Group(Path(folder), 0, self.num_ranks, self.timeout_s)
            except RuntimeError as error:
                raise self._failed(self.others[0], f"did not come: {error}") from error
            for other in self.others:
                self._receive(other)
        for other in self.others:
            threading.Thread(target=self._watch, args=(other,), name="ranks", daemon=True).start()
        return group

    @contextmanager
    def step(
        self, plan: StepPlan, tokens: Ints, wanted: list[int], context: StepContext
    ) -> Iterator[None]:
        """All ranks compute the pass that this one computes inside.

        Args:
            tokens: of the plan, with the carried ones.
            wanted: see `Forward`.
            context: of this rank, whose history and adapters are waited for here: the ranks do not
                wait in the midst of a pass.

        Raises:
            RankLost: not all of them can.
        """
        for layer in range(len(context.slot_pages)):
            context.await_history(layer)
            context.await_adapters([layer])
        context.awaited, context.streams = {}, {}
        self.check()
        message = _computed_part(plan, tokens), wanted
        try:
            for other in self.others:
                other.steps.send(message)
            yield
        except BaseException as error:  # others are somewhere in that pass
            self._lost = self._lost or f"a pass has failed: {error}"
            raise

    def copy(self, own: Slices, orders: list[Order]) -> bool:
        """See `CopyingRanks`."""
        with self._copying:
            try:
                for other in self.others:
                    other.copies.send(orders[other.number])
                done = own.do(orders[0])
                for other in self.others:
                    if not other.copies.poll(self.timeout_s):
                        raise TimeoutError(f"rank {other.number} does not copy")
                    done &= bool(other.copies.recv())
            except Exception as error:  # an answer that was not read would be the next copy's
                self._lose(f"the ranks of {self.spec.model_id} cannot copy: {error!r}")
                raise RankLost(self._lost) from error
            return done

    def check(self) -> None:
        """See that all ranks are where this one is.

        Raises:
            RankLost: they are not.
        """
        if self._lost:
            raise RankLost(self._lost)

    def close(self) -> None:
        """End the other ranks, which keep nothing."""
        self._is_closing = True
        for other in self.others:
            other.process.kill()
            other.process.wait()
            other.steps.close()
            other.copies.close()

    def _start(self, number: int) -> _Rank:
        ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        path = [PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
        numbers = [each.fileno() for each in theirs]
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", CHILD, *map(str, [os.getpid(), *numbers])],
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                start_new_session=True,  # Ctrl-C is for the worker
            )
        finally:
            for each in theirs:
                each.close()
        for each in ours:  # a rank that does not read must not hold up this one for ever
            limit = int(self.timeout_s).to_bytes(8, sys.byteorder) + bytes(8)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        steps, copies = (Connection(each.detach()) for each in ours)
        return _Rank(number, process, steps, copies)

    def _watch(self, rank: _Rank) -> None:
        status = rank.process.wait()
        if not self._is_closing:
            self._lose(f"rank {rank.number} of {self.spec.model_id} has ended: status {status}")

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self.on_lost(why)

    def _send(self, other: _Rank, message: object) -> None:
        try:
            other.steps.send(message)
        except OSError:
            raise self._failed(other, ENDED) from None

    def _receive(self, other: _Rank) -> Any:
        try:
            if other.steps.poll(LOAD_S):
                return other.steps.recv()
        except (EOFError, OSError):
            raise self._failed(other, ENDED) from None
        raise self._failed(other, f"has not answered for {LOAD_S:.0f} s")

    def _failed(self, other: _Rank, what: str) -> ConfigError:
        return ConfigError(f"SYMPHONY_TENSOR_PARALLEL={self.num_ranks}: rank {other.number} {what}")


def _computed_part(plan: StepPlan, tokens: Ints) -> StepPlan:
    """Of a plan, what its pass is made of: nothing to wait for, carry over or choose."""
    none = np.empty(0, np.int32)
    return replace(
        plan,
        tokens=tokens,
        carried=none,
        following=none,
        sampling=[None] * plan.num_rows,
        scoring={},
        awaited={},
        streams={},
        assists={},
        patience_ns={},
    )
