"""What ends a service."""

import asyncio
import errno
import gc
import threading
import warnings
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from shared.service.service import Runtime, _on_loop_error, _on_thread_error


def runtime() -> Runtime:
    return Runtime("worker", "0", cast(Any, None), AsyncExitStack())


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ConnectionResetError(), False),
        (BrokenPipeError(), False),
        (TimeoutError(), False),
        (OSError(errno.EHOSTUNREACH, "no route"), False),
        (OSError(errno.ENOSPC, "disk full"), True),
        (OSError(errno.EMFILE, "too many open files"), True),
        (ValueError("a bug"), True),
    ],
)
def test_only_what_is_of_a_peer_s_connection_is_passed_over(error: Exception, ends: bool) -> None:
    async def scenario() -> None:
        it = runtime()
        _on_loop_error(it, {"message": "m", "exception": error})
        assert it.stopping.is_set() is ends and it.exit_code == int(ends)

    asyncio.run(scenario())


def test_a_thread_that_dies_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        it, loop = runtime(), asyncio.get_running_loop()
        monkeypatch.setattr(threading, "excepthook", lambda args: _on_thread_error(loop, it, args))

        def work() -> None:
            raise OSError("no")

        threading.Thread(target=work, name="kv-load").start()
        await asyncio.wait_for(it.stopping.wait(), 10)
        assert it.exit_code == 1

    asyncio.run(scenario())


def test_work_that_is_cancelled_before_it_began_is_not_forgotten() -> None:
    """Else the interpreter says on stderr, whenever it likes, that it was never awaited."""

    async def work() -> None:
        raise AssertionError("it was cancelled before")

    async def scenario() -> None:
        service = runtime()
        service.spawn(work(), "work")
        await service.cancel_tasks()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(scenario())
        gc.collect()
    assert not said
