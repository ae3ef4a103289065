"""A worker and its kvstore as real processes, with this process as their scheduler and frontend;
or several hosts with one of each.

For measurements of the worker alone: what is timed goes over the real wires, from the message that
starts a turn to the message with its first token.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cli.base.children import free_port, start_child, stop_child
from loadtest.servers import start_nats, start_redis, wait_for_port
from loadtest.starting import Waiting
from shared.bus import Bus
from shared.errors import PeerUnavailable
from shared.ids import FrontendId, HostId, ModelId, SessionId, TurnId, WorkerId, new_id
from shared.runtime.settings import as_variables
from shared.runtime.tasks import wait_set
from shared.wire.messages import (
    AdapterRef,
    Empty,
    KvStats,
    ModelCard,
    Prefetch,
    Prompt,
    PromptPull,
    PromptReply,
    SamplingParams,
    StepOutput,
    TurnsStart,
    TurnStart,
    WorkerReport,
    pack_ints,
    unpack_hashes,
)
from shared.wire.subjects import (
    KV_STATS,
    PROMPT_PULL,
    STEP_OUTPUT,
    WORKER_PREFETCH,
    WORKER_REPORT,
    WORKER_START,
    Subject,
)

M = TypeVar("M")

HOST_ID = HostId("lab")
STATS_S = 2.0  # for the answer of a kvstore
LOOK_S = 1.0  # whether the worker of a turn that waits still runs


@dataclass(slots=True)
class Trace:
    """What was seen of one turn; instants are seconds of this process's monotonic clock.

    Attributes:
        queue_ms, prefill_ms: in the worker, until it was in a step, and from then to its first
            token.
    """

    started_at: float
    tokens: list[int]
    max_tokens: int
    num_history: int = 0
    token_at: list[float] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    error: str = ""

    @property
    def ttft_ms(self) -> float:
        """From the message that starts the turn to the message with its first token."""
        return (self.token_at[0] - self.started_at) * 1e3


class Lab:
    """The processes of a host and the wires to them. Make with `open_lab`."""

    def __init__(self, directory: Path, bus: Bus, env: dict[str, str], host_id: HostId) -> None:
        self.directory = directory
        self.host_id = host_id
        self._bus = bus
        self._env = env
        self._frontend = FrontendId(new_id("fe"))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._traces: dict[TurnId, Trace] = {}
        self._report: WorkerReport | None = None
        self._reported = asyncio.Event()
        self.metrics_port = free_port()
        self._log_from = 0

    async def listen(self) -> None:
        """Be the frontend and hear the worker."""
        await self._bus.serve(PROMPT_PULL, self._on_pull, self._frontend)
        await self._bus.subscribe(STEP_OUTPUT, self._on_output, self._frontend)
        await self._bus.subscribe(WORKER_REPORT, self._on_report)
        await self._bus.flush()

    async def hear(self, subject: Subject[M, Any], handler: Callable[[M], None]) -> None:
        """Hand over what the host's kvstore is sent on `subject` from now on."""
        await self._bus.subscribe(subject, handler, self.host_id)
        await self._bus.flush()

    async def start(self, service: str, *, python: str = sys.executable, **settings: str) -> None:
        """Start a service (again) and wait until it works."""
        self.stop(service)
        env = {**self._env, **as_variables(settings, self._env)}
        log_path = self.directory / f"{service}.log"
        command = [python, "-m", f"services.{service}"]
        if service == "worker":
            self._report = None
            env["SYMPHONY_METRICS_PORT"] = str(self.metrics_port)
        self._children[service] = start_child(command, log_path=log_path, env=env)
        await self._wait(service)

    def pid(self, service: str) -> int:
        """Of a service that runs."""
        return self._children[service].pid

    def stop(self, service: str) -> None:
        """Stop a service if it runs."""
        if (child := self._children.pop(service, None)) is not None:
            stop_child(child, grace_s=15.0)

    def close(self) -> None:
        """Stop everything."""
        for service in list(self._children):
            self.stop(service)

    @property
    def redis_url(self) -> str:
        """Where Redis is."""
        return self._env["SYMPHONY_REDIS_URL"]

    @property
    def card(self) -> ModelCard:
        """The model that is served."""
        assert self._report is not None, "no worker"
        return self._report.models[0]

    async def turn(
        self,
        tokens: list[int],
        max_tokens: int = 1,
        adapter: AdapterRef | None = None,
        *,
        session_id: SessionId | None = None,
        num_history: int = 0,
        kv_at: Mapping[HostId, int] | None = None,
    ) -> Trace:
        """Run one turn (greedy, to its length) and return what was seen of it.

        Args:
            num_history: first tokens of the prompt that the session's last turn left the KV of.
        """
        trace = self.begin(
            tokens,
            max_tokens,
            adapter,
            session_id=session_id,
            num_history=num_history,
            kv_at=kv_at,
        )
        await trace[1]
        return trace[0]

    def begin(
        self,
        tokens: list[int],
        max_tokens: int,
        adapter: AdapterRef | None = None,
        *,
        session_id: SessionId | None = None,
        num_history: int = 0,
        kv_at: Mapping[HostId, int] | None = None,
    ) -> tuple[Trace, "asyncio.Task[None]"]:
        """Start one turn; await the second value for its end."""
        assert self._report is not None, "no worker"
        turn_id = TurnId(new_id("turn"))
        trace = Trace(time.monotonic(), tokens, max_tokens, num_history)
        self._traces[turn_id] = trace
        start = TurnStart(
            turn_id=turn_id,
            frontend_id=self._frontend,
            model_id=ModelId(self.card.model_id),
            num_prompt_tokens=len(tokens),
            session_id=session_id,
            adapter=adapter,
            kv_at=dict(kv_at or {}),
        )

        async def run() -> None:
            assert self._report is not None
            worker_id = WorkerId(self._report.worker_id)
            await self._bus.publish(WORKER_START, TurnsStart(turns=[start]), worker_id)
            while not await wait_set(trace.ended, LOOK_S):
                if self._children["worker"].poll() is not None:
                    raise PeerUnavailable("the worker has ended")
            if trace.error:
                raise PeerUnavailable(f"the worker refused a turn: {trace.error}")

        return trace, asyncio.create_task(run())

    async def prefetch(self, prefetch: Prefetch) -> None:
        """Announce a turn to the worker."""
        assert self._report is not None, "no worker"
        await self._bus.publish(WORKER_PREFETCH, prefetch, WorkerId(self._report.worker_id))

    async def wait_resident(self, adapter: AdapterRef) -> None:
        """Wait until an adapter is in the worker's pool as a whole."""
        assert self._report is not None, "no worker"
        waiting = Waiting("the worker has the adapter")
        while adapter.adapter_hash not in unpack_hashes(self._report.adapters):
            await self._next_report(waiting)

    async def _next_report(self, waiting: Waiting) -> None:
        self._reported.clear()
        while not await wait_set(self._reported, LOOK_S):
            waiting.check()
        waiting.check()

    async def kv_stats(self) -> KvStats:
        """What the host's kvstore holds."""
        if (stats := await self._ask_kvstore()) is None:
            raise PeerUnavailable("no kvstore answers")
        return stats

    async def _ask_kvstore(self) -> KvStats | None:
        found: list[KvStats] = []

        def is_ours(replies: list[KvStats]) -> bool:
            found[:] = [each for each in replies if each.host_id == self.host_id]
            return bool(found)

        await self._bus.gather(KV_STATS, Empty(), timeout_s=STATS_S, until=is_ours)
        return found[0] if found else None

    async def wait_written(self) -> None:
        """Wait until the kvstore has all that the worker has."""
        waiting = Waiting("the kvstore has all that the worker has")
        await self._next_report(waiting)  # one may have been on its way
        await self._next_report(waiting)
        while self._report is None or self._report.num_pages_dirty:
            await self._next_report(waiting)

    async def wait_durable(self, num_blocks: int) -> None:
        """Wait until the kvstore has so many blocks on disk."""
        waiting = Waiting(f"{num_blocks} blocks are on disk")
        while (await self.kv_stats()).disk_blocks < num_blocks:
            waiting.check()
            await asyncio.sleep(0.05)

    async def wait_connected(self) -> None:
        """Wait until the worker's write-behind and stages reach the kvstore (again)."""
        await self._wait_for_log("worker", "kvstore connected")

    async def wait_helpers(self) -> None:
        """Wait until a helper of the worker's can compute adapters."""
        await self._wait_for_log("worker", "a helper of adapters is ready")

    def mark_log(self, service: str) -> None:
        """Later waits look only at what is logged from now on."""
        path = self.directory / f"{service}.log"
        self._log_from = path.stat().st_size if path.exists() else 0

    async def starts(self) -> dict[str, int]:
        """How many first tokens on adapters there were so far, by how those were come to."""
        waiting = Waiting("the worker reports")
        for _ in range(2):  # figures come with reports, and one may be in flight
            await self._next_report(waiting)
        name = "symphony_adapter_first_token_seconds_count{"
        return {
            line.split('start="')[1].split('"')[0]: int(float(line.rsplit(" ", 1)[1]))
            for line in self._metrics()
            if line.startswith(name)
        }

    def _metrics(self) -> list[str]:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url) as response:
            lines: list[str] = response.read().decode().splitlines()
        return lines

    def stall_ms_by_layer(self) -> list[float]:
        """The worker's total waiting for history and adapters so far, for each layer."""
        stalls: dict[int, float] = {}
        for line in self._metrics():
            if line.startswith("symphony_kv_stall_seconds_total{"):
                layer = int(line.split('layer="')[1].split('"')[0])
                stalls[layer] = float(line.rsplit(" ", 1)[1]) * 1e3
        return [stalls[layer] for layer in sorted(stalls)]

    async def _wait(self, service: str) -> None:
        waiting = Waiting(f"{service} is ready")
        while True:
            if (code := self._children[service].poll()) is not None:
                last = self._logged(service).strip().splitlines()[-1:]
                raise PeerUnavailable(f"{service} ended with status {code}: {last}")
            if service == "worker":
                if self._report is not None and self._report.state == "ready":
                    return
            elif service == "kvstore" and await self._ask_kvstore() is not None:
                return
            waiting.check()
            await asyncio.sleep(0.05)

    async def _wait_for_log(self, service: str, text: str) -> None:
        waiting = Waiting(f"{service} logs {text!r}")
        while text not in self._logged(service):
            waiting.check()
            await asyncio.sleep(0.05)

    def _logged(self, service: str) -> str:
        return (self.directory / f"{service}.log").read_text()[self._log_from :]

    async def _on_pull(self, pull: PromptPull) -> PromptReply:
        prompts = []
        for ref in pull.turns:
            trace = self._traces[ref.turn_id]
            sampling = SamplingParams(max_tokens=trace.max_tokens, temperature=0.0, ignore_eos=True)
            prompts.append(
                Prompt(
                    turn_id=ref.turn_id,
                    attempt=ref.attempt,
                    tokens=pack_ints(trace.tokens),
                    num_history=trace.num_history,
                    sampling=sampling,
                )
            )
        return PromptReply(prompts=prompts)

    def _on_output(self, output: StepOutput) -> None:
        now = time.monotonic()
        for delta in output.all():
            trace = self._traces[delta.turn_id]
            trace.generated += delta.tokens
            trace.token_at += [now] * len(delta.tokens)
            trace.begun.set()
            if delta.cached_tokens is not None:
                trace.cached_tokens = delta.cached_tokens
                trace.queue_ms = (delta.queue_ns or 0) / 1e6
                trace.prefill_ms = (delta.prefill_ns or 0) / 1e6
            if delta.finish is not None:
                trace.error = delta.message if delta.finish == "error" else ""
                trace.ended.set()

    def _on_report(self, report: WorkerReport) -> None:
        if report.host_id != self.host_id:
            return
        self._report = report
        self._reported.set()


@asynccontextmanager
async def open_lab(**settings: str) -> AsyncIterator[Lab]:
    """NATS and Redis of its own, a directory of its own; services are started by the caller."""
    async with open_labs(HOST_ID, **settings) as (lab,):
        yield lab


class Servers(NamedTuple):
    """NATS and Redis of a bench, and the settings that say where they are."""

    nats: "subprocess.Popen[bytes]"
    redis: "subprocess.Popen[bytes]"
    env: dict[str, str]


def start_servers(stack: ExitStack, directory: Path) -> Servers:
    """Start them on free ports, until `stack` closes."""
    nats_port = free_port()
    redis_port = free_port(but=nats_port)
    nats = start_nats(nats_port, directory / "nats")
    stack.callback(stop_child, nats)
    redis = start_redis(redis_port, directory / "redis")
    stack.callback(stop_child, redis)
    wait_for_port(nats, nats_port, "nats")
    wait_for_port(redis, redis_port, "redis")
    env = {
        "SYMPHONY_NATS_URL": f"nats://127.0.0.1:{nats_port}",
        "SYMPHONY_REDIS_URL": f"redis://127.0.0.1:{redis_port}/0",
    }
    return Servers(nats, redis, env)


@asynccontextmanager
async def open_labs(*host_ids: HostId, **settings: str) -> AsyncIterator[list[Lab]]:
    """Several hosts, each with a directory of its own, that share NATS and Redis."""
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="symphony-lab-")
        directory = Path(stack.enter_context(temporary))
        shared = {
            **os.environ,
            **start_servers(stack, directory).env,
            "SYMPHONY_LOG_LEVEL": "info",
            **as_variables(settings, os.environ),
        }
        bus = await Bus.connect(shared["SYMPHONY_NATS_URL"], "lab")
        labs = []
        for host_id in host_ids:
            own = directory / host_id
            own.mkdir()
            env = {
                **shared,
                "SYMPHONY_DATA_DIR": str(own),
                "SYMPHONY_ARENA_DIR": f"/dev/shm/{directory.name}-{host_id}",
                "SYMPHONY_HOST_ID": host_id,
            }
            labs.append(Lab(own, bus, env, host_id))
            stack.callback(labs[-1].close)
            await labs[-1].listen()
        yield labs
        await bus.drain()
