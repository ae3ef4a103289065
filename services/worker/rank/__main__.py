"""``python -m services.worker.rank PARENT STEPS COPIES``: a rank but the first, until the parent
ends, or closes the sockets of these numbers.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import torch

from services.worker.device.cpu.threads import limit_threads
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.openmp import share_cores
from services.worker.device.parallel.copier import Slices
from services.worker.device.parallel.group import Group
from services.worker.device.parallel.ranks import Begin, RankSpec
from services.worker.rank.loading import load_rank, loaded
from shared.runtime.dying import die_with_parent


def main(parent: int, steps: Connection, copies: Connection) -> None:
    """Load, then compute the passes of all plans that come."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec: RankSpec = steps.recv()
    limit_threads(spec.num_threads)
    groups: list[Group] = []

    def sum_ranks(x: torch.Tensor) -> None:
        groups[0].sum(x)

    model = load_rank(spec, sum_ranks)
    steps.send(loaded(model))
    begin: Begin = steps.recv()
    groups.append(Group(begin.folder, spec.rank, spec.num_ranks, begin.timeout_s))
    executor = TorchExecutor(model, spec.model_id, begin.num_pages, lambda _: None)
    executor.warm_up()
    own = Slices(executor.pool_bytes(), spec.rank)
    threading.Thread(target=_until_end, args=(lambda: _copy(own, copies),), daemon=True).start()
    steps.send("ready")
    _until_end(lambda: executor.compute(*steps.recv()))


def _copy(own: Slices, copies: Connection) -> None:
    copies.send(own.do(copies.recv()))


def _until_end(work: Callable[[], None]) -> None:
    """Work until the first rank has ended or closed, and then end this process, whatever its other
    threads are at; an error ends it, too."""
    status = 1
    try:
        while True:
            try:
                work()
            except (EOFError, ConnectionError):
                status = 0
                return
    finally:
        if status:
            sys.excepthook(*sys.exc_info())
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    share_cores()
    main(int(sys.argv[1]), Connection(int(sys.argv[2])), Connection(int(sys.argv[3])))
