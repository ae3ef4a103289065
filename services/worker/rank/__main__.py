"""``python -m services.worker.rank PARENT STEPS COPIES``: a rank but the first, until the parent
ends, or closes the sockets of these numbers.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

from services.worker.device.cpu.threads import limit_threads
from services.worker.device.cpu.torch_executor import TorchExecutor
from services.worker.device.parallel.copier import Slices
from services.worker.device.parallel.group import Group
from services.worker.device.parallel.ranks import Begin, RankSpec
from services.worker.rank.loading import load_rank, loaded, sum_over
from shared.runtime.dying import die_with_parent


def main(parent: int, steps: Connection, copies: Connection) -> None:
    """Load, then compute the passes of all plans that come."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec: RankSpec = steps.recv()
    limit_threads(spec.num_threads)
    model = load_rank(spec)
    steps.send(loaded(model))
    begin: Begin = steps.recv()
    sum_over(Group(begin.folder, spec.rank, spec.num_ranks, begin.timeout_s), model)
    executor = TorchExecutor(model, spec.model_id, begin.num_pages, lambda _: None)
    executor.warm_up()
    copy = partial(_copy, Slices(executor.pool_bytes(), spec.rank), copies)
    threading.Thread(target=_then_end, args=(copy,), daemon=True).start()
    steps.send("ready")
    while True:
        executor.compute(*steps.recv())


def _copy(own: Slices, copies: Connection) -> None:
    """Carry out all orders that come."""
    while True:
        copies.send(own.do(copies.recv()))


def _then_end(work: Callable[[], None]) -> None:
    """Work until the first rank has ended or closed, and then end this process, whatever its other
    threads are at; an error ends it, too."""
    status = 0
    try:
        work()
    except (EOFError, ConnectionError):
        pass
    except BaseException:
        status = 1
        traceback.print_exc()
    os._exit(status)  # standard error has no buffer to flush


if __name__ == "__main__":
    parent, steps, copies = map(int, sys.argv[1:])
    _then_end(partial(main, parent, Connection(steps), Connection(copies)))
