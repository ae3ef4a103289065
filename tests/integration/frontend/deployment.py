"""A frontend on real NATS and Redis, with a scheduler and worker that do what a test tells them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI

from cli.base.children import free_port
from loadtest.bench.core.frontend import InProcessTexts
from services.frontend.config import FrontendConfig
from services.frontend.ports import make_pools, open_ports
from services.frontend.service import main
from services.worker.models.demo_model import make_demo_model
from shared.bus import Bus
from shared.errors import PeerUnavailable
from shared.ids import HostId, ModelId, WorkerId
from shared.service import Runtime
from shared.wire import messages as m
from shared.wire.subjects import (
    PROMPT_PULL,
    SCHEDULER_PING,
    SESSION_FORGET,
    STEP_OUTPUT,
    TURN_CANCEL,
    TURN_FAILED,
    TURN_SUBMIT,
    WORKER_REPORT,
)
from tests.conftest import Server
from tests.integration.harness import InProcessRuntime, connected, eventually, running

MODEL = "demo/model"
EOS = 258
MODEL_LEN = 512
REPORT_S = 0.1


@dataclass
class Reply:
    """What the fake worker says.

    Attributes:
        text: streamed one token (byte) a delta, then the end token.
        hold: waited for before the token number `hold_at`.
        die_at: stop without a word before this token, on attempt 1.
    """

    text: str = "hello"
    finish: m.FinishReason = "stop"
    hold: asyncio.Event | None = None
    hold_at: int = 0
    die_at: int | None = None
    cached_tokens: int = 3
    failure: m.TurnFailed | None = None
    error_at: int | None = None
    prompt_tokens: int | None = None


def logprobs_of(token: int, top: int) -> m.TokenLogprobs:
    """Made-up figures: the token itself, then its neighbours."""
    others = [((token + step) % 256, -0.5 - step) for step in range(top)]
    return m.TokenLogprobs(token=token, logprob=-0.5, top=others)


@dataclass
class FakeServices:
    """Scheduler and worker in one: hears TURN_SUBMIT, pulls, streams."""

    bus: Bus
    folder: Path
    reply: Callable[[m.Prompt], Reply]
    submits: list[m.TurnSubmit] = field(default_factory=list)
    prompts: list[m.Prompt] = field(default_factory=list)
    cancels: list[m.TurnCancel] = field(default_factory=list)
    is_reporting: bool = True
    is_deaf: bool = False
    is_forgetful: bool = True
    knows_sessions: bool = False  # that it is told to forget
    has_kvstore: bool = False
    lora: m.LoraCard | None = None
    takes_images: bool = False
    num_reports_with_kvstore: int = 0
    worker_id: WorkerId = field(default_factory=lambda: WorkerId("w1"))
    forgets: list[m.SessionForget] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        await self.bus.subscribe(TURN_SUBMIT, self._on_submit, "0")
        await self.bus.subscribe(TURN_CANCEL, self.cancels.append, "0")
        await self.bus.serve(SCHEDULER_PING, self._ping, "0")
        await self.bus.serve(SESSION_FORGET, self._forget)
        await self.bus.flush()
        self._spawn(self._report())

    async def stop(self) -> None:
        self.is_deaf = True  # a frontend may submit again what is open when it stops
        for task in self._tasks:
            task.cancel()
        done = await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in done:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error

    def card(self) -> m.ModelCard:
        return m.ModelCard(
            model_id=ModelId(MODEL),
            source=str(self.folder),
            fingerprint="f1",
            max_model_len=MODEL_LEN,
            created=1,
            lora=self.lora,
            takes_images=self.takes_images,
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)

    async def _ping(self, _: m.Empty) -> m.Empty:
        return m.Empty()

    async def _forget(self, forget: m.SessionForget) -> m.SessionForgotten:
        self.forgets.append(forget)
        if not self.is_forgetful:
            raise PeerUnavailable("a commit is not answered")
        return m.SessionForgotten(worker_id=self.worker_id, was_known=self.knows_sessions)

    async def _report(self) -> None:
        seq = 0
        while True:
            seq += 1
            report = m.WorkerReport(
                worker_id=WorkerId("w1"),
                incarnation="i",
                seq=seq,
                host_id=HostId("h"),
                state="ready",
                models=[self.card()],
                has_kvstore=self.has_kvstore,
                interval_ns=int(REPORT_S * 1e9),
            )
            if self.is_reporting:
                await self.bus.publish(WORKER_REPORT, report)
                self.num_reports_with_kvstore += self.has_kvstore
            await asyncio.sleep(REPORT_S)

    def _on_submit(self, message: m.TurnsSubmit) -> None:
        for submit in message.turns:
            self.submits.append(submit)
            if not self.is_deaf:
                self._spawn(self._run(submit))

    async def _run(self, submit: m.TurnSubmit) -> None:
        earlier = [s for s in self.submits[:-1] if s.turn_id == submit.turn_id]
        attempt = max(submit.attempt, len(earlier) + 1)
        ref = m.TurnRef(turn_id=submit.turn_id, attempt=attempt)
        pull = m.PromptPull(turns=[ref])
        pulled = await self.bus.request(PROMPT_PULL, pull, submit.frontend_id)
        prompt = pulled.prompts[0]
        self.prompts.append(prompt)
        if prompt.gone:
            return
        reply = self.reply(prompt)
        if reply.failure is not None:
            await self.bus.publish(TURN_FAILED, reply.failure, submit.frontend_id)
            return
        await self._stream(submit, prompt, reply)

    async def _stream(self, submit: m.TurnSubmit, prompt: m.Prompt, reply: Reply) -> None:
        tokens = [*reply.text.encode(), *([EOS] if reply.finish == "stop" else [])]
        tokens = tokens[: prompt.sampling.max_tokens]
        for at in range(prompt.num_generated, len(tokens)):
            if reply.hold is not None and at == reply.hold_at:
                await reply.hold.wait()
            if at == reply.die_at and prompt.attempt == 1:
                return
            if at == reply.error_at:
                delta = m.TurnDelta(
                    turn_id=prompt.turn_id, attempt=prompt.attempt, index=at,
                    finish="error", code="worker_broke", message="it broke",
                )  # fmt: skip
                await self._emit(submit, delta)
                return
            await self._emit(submit, self._delta(prompt, reply, tokens, at))

    def _delta(self, prompt: m.Prompt, reply: Reply, tokens: list[int], at: int) -> m.TurnDelta:
        sampling, token = prompt.sampling, tokens[at]
        finish: m.FinishReason | None = None
        if at == len(tokens) - 1:
            finish = "stop" if token == EOS else "length"
        is_first = at == prompt.num_generated
        prompt_logprobs = None
        if is_first and sampling.prompt_logprobs is not None:
            given = m.unpack_ints(prompt.tokens)
            prompt_logprobs = [logprobs_of(t, sampling.prompt_logprobs) for t in given]
            prompt_logprobs[0] = m.TokenLogprobs(token=given[0], logprob=None)
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = [logprobs_of(token, sampling.logprobs)]
        return m.TurnDelta(
            turn_id=prompt.turn_id,
            attempt=prompt.attempt,
            index=at,
            tokens=[token],
            finish=finish,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            cached_tokens=reply.cached_tokens if is_first else None,
            cached_in={"pool": 1, "disk": reply.cached_tokens - 1} if is_first else {},
            queue_ns=1_000_000 if is_first else None,
            prefill_ns=1_000_000 if is_first else None,
            prompt_tokens=reply.prompt_tokens if is_first else None,
        )

    async def _emit(self, submit: m.TurnSubmit, delta: m.TurnDelta) -> None:
        step = m.StepOutput(deltas=[delta])
        await self.bus.publish(STEP_OUTPUT, step, submit.frontend_id)


@dataclass
class Deployment:
    """Everything a test talks to."""

    url: str
    runtime: InProcessRuntime
    fake: FakeServices
    bus: Bus
    http: httpx.AsyncClient
    openai: AsyncOpenAI


@asynccontextmanager
async def deployment(
    nats_server: Server,
    redis_server: Server,
    folder: Path,
    reply: Callable[[m.Prompt], Reply] = lambda _: Reply(),
    lora: m.LoraCard | None = None,
    has_processes: bool = False,
    takes_images: bool = False,
    **settings: Any,
) -> AsyncIterator[Deployment]:
    """A frontend whose model is up, over HTTP and through the official client.

    Args:
        has_processes: it has a process for short chats, too, whose start takes a second.
    """
    port = free_port()
    config = FrontendConfig(
        nats_url=nats_server.url, redis_url=redis_server.url, http_port=port, **settings
    )
    url = f"http://127.0.0.1:{port}"
    make_demo_model(folder / "demo")
    async with AsyncExitStack() as stack:
        start = main if has_processes else _without_processes
        runtime = await stack.enter_async_context(running(start, config, "frontend"))
        bus = await stack.enter_async_context(connected(nats_server.url))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))
        openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        await stack.enter_async_context(openai)
        fake = FakeServices(bus, folder / "demo", reply, lora=lora, takes_images=takes_images)
        await fake.start()
        stack.push_async_callback(fake.stop)
        await wait_healthy(http)
        yield Deployment(url, runtime, fake, bus, http, openai)


async def _without_processes(runtime: Runtime, config: FrontendConfig) -> None:
    def texts(is_shared: bool) -> InProcessTexts:
        return InProcessTexts(*make_pools(runtime, config, is_shared=is_shared))

    await main(runtime, config, replace(open_ports(runtime, config), texts=texts))


async def wait_healthy(http: httpx.AsyncClient) -> None:
    """Until a model can be asked."""
    deadline = asyncio.get_running_loop().time() + 240  # the first in a process imports much
    while (await http.get("/health")).status_code != 200:
        assert asyncio.get_running_loop().time() < deadline, "never healthy"
        await asyncio.sleep(0.02)


__all__ = ["EOS", "MODEL", "MODEL_LEN", "Deployment", "Reply", "deployment", "eventually"]
