"""The same people at real processes: a deployment with emulated workers, over HTTP, in real time.

Only what the workers' GPUs do is emulated, by the profile that the simulation uses. Everything
shares this machine, this client with it.
"""

import asyncio
from collections.abc import Callable, Coroutine

import orjson

from loadtest.cluster.door import Announce, Ask
from loadtest.cluster.options import ClusterOptions
from loadtest.cluster.people import People
from loadtest.cluster.stats import Stats
from loadtest.raw_http import request_bytes
from loadtest.sim.timeline import SECOND
from loadtest.workloads.script import Script
from shared.profiles import load_profile

TURNS, ADVISORIES = "/v1/completions", "/v1/advisories"
DRAIN_S = 60.0
LINE_MAX = 1 << 20
DATA = b"data: "
FINISHED = "length"


class RealDoor:
    """A frontend's HTTP, a connection a turn.

    Attributes:
        num_refused: advisories that were.
    """

    def __init__(self, model: str, port: int) -> None:
        self._model = model
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_refused = 0

    @property
    def now_ns(self) -> int:
        return round(self._loop.time() * SECOND)

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._loop.call_later(delay_ns / SECOND, action)

    def ask(
        self,
        ask: Ask,
        on_tokens: Callable[[list[int]], None],
        on_end: Callable[[bool], None],
    ) -> None:
        body = {
            "model": self._model,
            "prompt": bytes(ask.prompt).decode("ascii"),
            "max_tokens": ask.num_output,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "session_id": ask.session_id,
            "priority": ask.priority,
        }
        if ask.agent is not None:
            body |= {"agent": ask.agent.agent, "workflow_id": ask.agent.workflow_id}
        self._begin(self._turn(orjson.dumps(body), on_tokens, on_end))

    def announce(self, announce: Announce) -> None:
        body: dict[str, object] = {
            "session_id": announce.session_id,
            "model_id": self._model,
            "priority": announce.priority,
        }
        if announce.expected_in_ns is not None:
            body["expected_arrival"] = announce.expected_in_ns / SECOND
        if (agent := announce.agent) is not None:
            body |= {"agent": agent.agent, "workflow_id": agent.workflow_id}
        self._begin(self._advise(orjson.dumps(body)))

    async def close(self, timeout_s: float) -> None:
        """Wait for what was begun, so long at most; what is left then stays without an end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _turn(
        self, body: bytes, on_tokens: Callable[[list[int]], None], on_end: Callable[[bool], None]
    ) -> None:
        is_good = False
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=LINE_MAX)
            try:
                writer.write(request_bytes("POST", TURNS, self._port, body))
                async for line in reader:
                    if line.startswith(DATA + b"{"):
                        choice = orjson.loads(line[len(DATA) :])["choices"][0]
                        if choice["text"]:
                            on_tokens(list(choice["text"].encode()))
                        if choice["finish_reason"] is not None:
                            is_good = choice["finish_reason"] == FINISHED
                            break
            finally:
                writer.close()
        except (OSError, KeyError, IndexError, orjson.JSONDecodeError):
            is_good = False
        on_end(is_good)

    async def _advise(self, body: bytes) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(request_bytes("POST", ADVISORIES, self._port, body))
            status = await reader.readline()
            writer.close()
        except OSError:
            status = b""
        self.num_refused += b" 202 " not in status


async def play_real(options: ClusterOptions, scripts: list[Script], port: int) -> Stats:
    """Let them use the deployment on this port, and wait for what was begun."""
    door, stats = RealDoor(options.profile, port), Stats(warm_ns=options.warm_ns)
    tokens_max = load_profile(options.profile).max_model_len
    People(door, scripts, options, stats, tokens_max=tokens_max)
    await asyncio.sleep(options.warm_ns / SECOND)
    stats.on_warm()
    await asyncio.sleep(options.duration_ns / SECOND)
    await door.close(DRAIN_S)
    return stats
