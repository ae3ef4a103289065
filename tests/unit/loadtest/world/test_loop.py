"""The simulated event loop runs what asyncio gives it as asyncio's own loops do."""

import asyncio
from contextvars import ContextVar
from random import Random

from loadtest.sim.loop import SimLoop
from loadtest.sim.timeline import SECOND, Action, Timeline


class Host:
    """A process that is always there."""

    def __init__(self) -> None:
        self.timeline = Timeline()

    @property
    def now_ns(self) -> int:
        return self.timeline.now_ns

    def later(self, delay_ns: int, action: Action) -> None:
        self.timeline.after(delay_ns, action)

    def on_idle(self) -> None:
        """Nothing is checked."""


def test_a_task_whose_context_was_empty_keeps_what_it_sets_there() -> None:
    name: ContextVar[str] = ContextVar("name")
    host = Host()
    loop = SimLoop(host, Random(0))

    async def work() -> str:
        token = name.set("fox")
        await asyncio.sleep(1)
        found = name.get()
        name.reset(token)
        return found

    task = loop.create_task(work())
    host.timeline.run_until(2 * SECOND, 100)
    assert task.result() == "fox"
