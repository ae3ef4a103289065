"""The frontend's `main` in one process, on ports in memory: no socket, file, thread or process."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.types import ASGIApp
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from loadtest.sim.redis import MemoryRedis, RedisServer
from services import frontend
from services.frontend.compiling.maker import GrammarMaker
from services.frontend.config import FrontendConfig
from services.frontend.ports import Ports
from services.frontend.rendering.texts import Texts
from services.frontend.rendering.tokenizer import ModelTokenizer
from services.frontend.service import main
from services.frontend.tenants.links import Connect
from shared.bus import Bus
from shared.ids import HostId, ModelId, WorkerId
from shared.runtime.clock import ManualClock
from shared.service import Runtime
from shared.wire import messages as m
from shared.wire.subjects import (
    PROMPT_PULL,
    STEP_OUTPUT,
    TURN_CANCEL,
    TURN_SUBMIT,
    WORKER_REPORT,
)
from tests.memory_bus import MemoryBus

IMPORT = re.compile(r"^\s*(?:import|from) ([\w.]+)", re.MULTILINE)
OUTSIDE = {
    "os", "random", "redis.asyncio", "resource", "secrets", "shared.runtime.redis_client", "socket",
    "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
PORTS = {
    "adapters/upload_files.py", "api/dashboard.py", "compiling/child.py", "http/connections.py",
    "http/server.py", "ports.py", "rendering/child.py", "rendering/pool.py",
    "rendering/template_limits.py", "rendering/without_torch.py", "sessions/redis.py",
}  # fmt: skip
SAID = [2, 1, 0]
WORDS = ["one", "two", "three", "four"]


class MemoryHttp:
    """Hands the application to who asks it, in this process."""

    url = "memory:"

    def __init__(self) -> None:
        self.api: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
        self._stopped = asyncio.Event()

    async def serve(self, api: ASGIApp) -> None:
        self.api.set_result(api)
        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()


class Inline(Executor):
    """Does everything at once, in the caller's thread."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(work(*args, **kwargs))
        return future


class MemoryModelFiles:
    """One tokenizer, of four words."""

    async def prepare(self) -> None:
        """Nothing is to be imported."""

    async def tokenizer(self, source: str) -> ModelTokenizer:
        words = {word: at for at, word in enumerate(WORDS)}
        backend = Tokenizer(models.WordLevel(words, unk_token="four"))
        return ModelTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), source)

    async def image_processor(self, source: str) -> Any:
        raise AssertionError("no model takes images")


@dataclass
class Worker:
    """Scheduler and worker in one: replies to every prompt with `SAID`, unless it is silent."""

    bus: MemoryBus
    prompts: list[m.Prompt] = field(default_factory=list)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    is_silent: bool = False
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        await self.bus.subscribe(TURN_SUBMIT, self._on_submit, "0")
        card = m.ModelCard(model_id=ModelId("m"), source="/m", fingerprint="f", max_model_len=64)
        report = m.WorkerReport(
            worker_id=WorkerId("w"), incarnation="i", seq=1, host_id=HostId("h"), state="ready",
            models=[card], interval_ns=10**12,
        )  # fmt: skip
        await self.bus.publish(WORKER_REPORT, report)

    def _on_submit(self, message: m.TurnsSubmit) -> None:
        self.was_asked.set()
        if not self.is_silent:
            self.tasks += [asyncio.create_task(self._run(submit)) for submit in message.turns]

    async def _run(self, submit: m.TurnSubmit) -> None:
        ref = m.TurnRef(turn_id=submit.turn_id, attempt=1)
        pulled = await self.bus.request(PROMPT_PULL, m.PromptPull(turns=[ref]), submit.frontend_id)
        self.prompts += pulled.prompts
        for at, token in enumerate(SAID):
            delta = m.TurnDelta(
                turn_id=submit.turn_id, attempt=1, index=at, tokens=[token],
                finish="length" if at == len(SAID) - 1 else None,
            )  # fmt: skip
            await self.bus.publish(STEP_OUTPUT, m.StepOutput(deltas=[delta]), submit.frontend_id)


@pytest.fixture
def nothing_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would reach outside the process fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the frontend reached outside its ports")

    for name in (
        "socket.create_server", "socket.create_connection", "asyncio.create_subprocess_exec",
        "threading.Thread.start", "tempfile.TemporaryFile", "redis.asyncio.Redis.__init__",
        "nats.aio.client.Client.connect",
    ):  # fmt: skip
        monkeypatch.setattr(name, refuse)


@dataclass
class Served:
    """A frontend that runs, with one model."""

    runtime: Runtime
    api: ASGIApp
    worker: Worker
    redis: RedisServer
    links: list[str]

    async def complete(self) -> httpx.Response:
        """A completion of token ids."""
        transport = httpx.ASGITransport(self.api)
        body = {"model": "m", "prompt": [0, 1, 3], "max_tokens": len(SAID)}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.post("/v1/completions", json=body, headers={"X-Session-Id": "fox"})


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Served]:
    """The production `main` on ports in memory; it is stopped at the end of the block."""
    clock = ManualClock(1)
    bus, redis, http, links = MemoryBus(), RedisServer(clock.wall_ns), MemoryHttp(), list[str]()
    clients: list[MemoryRedis] = []

    async def connect(name: str) -> MemoryBus:
        links.append(name)
        return bus

    def open_redis(_: float) -> MemoryRedis:
        clients.append(MemoryRedis(redis))
        return clients[-1]

    async with AsyncExitStack() as stack:
        runtime = Runtime("frontend", "0", cast(Bus, bus), stack)
        runtime.clock = clock
        stack.push_async_callback(runtime.cancel_tasks)
        unused = cast(Any, None)
        ports = Ports(
            http=http,
            connect=cast(Connect, connect),
            redis=open_redis,
            threads=lambda *_: Inline(),
            texts=lambda _: Texts(unused, unused),
            grammars=GrammarMaker(clock),
            model_files=MemoryModelFiles(),
            upload_files=unused,
            draw=lambda: 0.5,
        )
        serving = asyncio.create_task(main(runtime, FrontendConfig(**settings), ports))
        api, worker = await http.api, Worker(bus)
        await worker.start()
        await asyncio.sleep(0)  # the report is delivered
        await next(task for task in asyncio.all_tasks() if task.get_name() == "tokenizer m")
        yield Served(runtime, api, worker, redis, links)
        runtime.stopping.set()
        await serving
    assert runtime.exit_code == 0 and bus.num_drained == 1
    assert len(clients) == 2 and all(client.is_closed for client in clients)


@pytest.mark.usefixtures("nothing_outside")
def test_the_production_main_completes_a_prompt_on_ports_in_memory() -> None:
    async def scenario() -> None:
        async with served() as it:
            assert it.runtime.models() == ["m"]
            answer = await it.complete()
            assert answer.status_code == 200, answer.text
            choice = answer.json()["choices"][0]
            assert choice["finish_reason"] == "length"
            assert choice["text"].split() == [WORDS[token] for token in SAID]
            assert answer.json()["usage"]["completion_tokens"] == len(SAID)
            assert [m.unpack_ints(prompt.tokens) for prompt in it.worker.prompts] == [[0, 1, 3]]
            assert any(b"fox" in name for name in it.redis.names()), "the session is stored"
            assert it.links == ["frontend-0-public-0"]

    asyncio.run(scenario())


@pytest.mark.usefixtures("nothing_outside")
def test_a_stop_ends_open_turns_with_an_error_and_cancels_them() -> None:
    cancels: list[m.TurnCancel] = []

    async def scenario() -> None:
        async with served(drain_s=0) as it:
            it.worker.is_silent = True
            await it.worker.bus.subscribe(TURN_CANCEL, cancels.append, "0")
            asking = asyncio.create_task(it.complete())
            await it.worker.was_asked.wait()
        answer = await asking
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "stopping"

    asyncio.run(scenario())
    assert len(cancels) == 1


def test_only_ports_import_what_reaches_outside_the_process() -> None:
    folder = Path(frontend.__path__[0])
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if not OUTSIDE.isdisjoint(IMPORT.findall(path.read_text()))
    }
    assert found == PORTS
