"""Servers of a language model with adapters, simulated, under the production scheduler.

A server runs all of its turns in each step, computes prompts that came since the last one in it,
and reports as a worker does. How long a step takes is its model's (`StepTimes`): so only placement
decides how long tokens take. Time is virtual; nothing waits for a network.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from services.scheduler.core import (
    FailTurn,
    Limits,
    PlacementPolicy,
    SchedulerCore,
    SendPrefetch,
    StartTurn,
)
from shared.blocks import BLOCK_TOKENS
from shared.effects import WakeAt
from shared.ids import FrontendId, HostId, ModelId, TurnId, WorkerId
from shared.wire.messages import (
    AdapterRef,
    ModelCard,
    ModelRoom,
    ModelSpeeds,
    StepModelFit,
    TurnEnd,
    TurnPrefetched,
    TurnRef,
    TurnsEnded,
    TurnsSubmit,
    TurnStart,
    TurnSubmit,
    WorkerReport,
    pack_hashes,
)
from shared.wire.messages.adapters import HASH_CHARS

M = ModelId("llama-2")
MS = 1_000_000
SECOND = 1_000 * MS
REPORT_EVERY_NS = 500 * MS
BEGINS_NS = SECOND  # by then every server has reported


@dataclass(slots=True)
class Request:
    """A turn: when it comes, on which adapter, and how long it is.

    Attributes:
        num_made: tokens, as of when it last ran; see `Server.made`.
        first_ns, last_ns: of its tokens; 0: none yet.
        attempt: the one that runs.
        moved_ns: its last token where it ran before; 0: it has not moved, or goes on already.
    """

    at_ns: int
    adapter: AdapterRef
    num_prompt: int
    num_output: int
    num_made: int = 0
    first_ns: int = 0
    last_ns: int = 0
    begun_at_step: int = 0
    attempt: int = 1
    moved_ns: int = 0

    @property
    def token_ms(self) -> float | None:
        """Mean time between its tokens; None: it is not over."""
        if self.num_made < self.num_output:
            return None
        return (self.last_ns - self.first_ns) / max(self.num_output - 1, 1) / MS

    @property
    def num_tokens(self) -> int:
        """Of its prompt and of what it made before it last began."""
        return self.num_prompt + self.num_made

    @property
    def num_to_compute(self) -> int:
        """Of those, when it begins: where it moves to, all but the last block is prefetched."""
        return min(self.num_tokens, BLOCK_TOKENS) if self.moved_ns else self.num_tokens


class Batch(NamedTuple):
    """What a step computes.

    Attributes:
        turns: all that run.
        num_context: tokens of their histories.
        num_prompt_tokens: of those that begin.
    """

    turns: Sequence[Request]
    num_context: int
    num_prompt_tokens: int


class StepTimes(Protocol):
    """How long steps take."""

    def step_ms(self, batch: Batch) -> float: ...

    def fits(self) -> list[StepModelFit]:
        """What a worker that ran such steps would report of adapters."""
        ...

    def speeds(self) -> ModelSpeeds:
        """And of steps without."""
        ...


@dataclass(frozen=True, slots=True)
class Shape:
    """Of all servers.

    Attributes:
        seats: turns in one step.
        prompts_max: that begin in one step.
        num_blocks: of the KV pool; 0: more than is ever needed.
        is_one_adapter: turns of one adapter run together, and no others.
        block_ms: that a block takes from one server to another.
    """

    seats: int = 64
    prompts_max: int = 64
    num_blocks: int = 0
    is_one_adapter: bool = False
    block_ms: float = 0.0


@dataclass(slots=True)
class Server:
    """Attributes:
    num_context: tokens of the histories of those that run.
    ends: turns that end with a step, by its number.
    began_ns, stepped_ns: when the last step began, and when one ended.
    """

    worker_id: WorkerId
    running: dict[TurnId, Request] = field(default_factory=dict)
    waiting: deque[TurnId] = field(default_factory=deque)
    num_context: int = 0
    num_steps: int = 0
    num_reports: int = 0
    began_ns: int = 0
    stepped_ns: int = 0
    is_stepping: bool = False
    begun: list[Request] = field(default_factory=list)
    ends: defaultdict[int, list[TurnId]] = field(default_factory=lambda: defaultdict(list))

    def made(self, request: Request) -> int:
        """Tokens of a turn that runs here."""
        return request.num_made + self.num_steps - request.begun_at_step

    def begin(self, turn_id: TurnId, request: Request) -> None:
        """A turn runs from the next step on."""
        self.running[turn_id] = request
        self.num_context += request.num_tokens
        request.begun_at_step = self.num_steps
        self.ends[self.num_steps + request.num_output - request.num_made].append(turn_id)
        self.begun.append(request)

    def stop(self, turn_id: TurnId) -> Request:
        """A turn runs no more: it is over, or comes again."""
        request = self.running.pop(turn_id)
        self.num_context -= request.num_prompt + self.made(request)
        ends_at = request.begun_at_step + request.num_output - request.num_made
        request.num_made = self.made(request)
        if ends_at > self.num_steps:
            self.ends[ends_at].remove(turn_id)
        return request


class Gap(NamedTuple):
    """What a turn that moved made a client wait, and a step where it went."""

    gap_ns: int
    step_ns: int


class Sample(NamedTuple):
    """One instant.

    Attributes:
        sizes: of batches, by server.
        num_turns: that came and are not over.
        num_tokens: that were made since the start.
    """

    at_ns: int
    sizes: list[int]
    num_turns: int
    num_tokens: int


class LlmServers:
    """Args:
    requests: in the order in which they come.
    slo_ms: for the mean time between a turn's tokens, as its header would say; None: none.
    sample_ns: between two samples; 0: none.
    """

    def __init__(
        self,
        policy: type[PlacementPolicy],
        steps: StepTimes,
        num_servers: int,
        requests: list[Request],
        *,
        shape: Shape = Shape(),
        slo_ms: float | None = None,
        sample_ns: int = 0,
    ) -> None:
        limits = Limits(learning_ns=0)
        self._steps = steps
        self._shape = shape
        self._slo_ms = slo_ms
        self._sample_ns = sample_ns
        self._core = SchedulerCore(policy(limits), limits, 0)
        ids = [WorkerId(f"s{number:02}") for number in range(num_servers)]
        self._servers = {worker_id: Server(worker_id) for worker_id in ids}
        self._requests = {TurnId(f"t{n}"): each for n, each in enumerate(requests)}
        self._hashes = pack_hashes(sorted({each.adapter.adapter_hash for each in requests}))
        self._events: list[tuple[int, int, str, str]] = []
        self._num_events = 0
        self._num_turns = self._num_tokens = 0
        self.num_refused = self.num_restarts = 0
        self.samples: list[Sample] = []
        self.gaps: list[Gap] = []
        self.now_ns = 0

    def run(self) -> None:
        """Until all requests are over."""
        for number, worker_id in enumerate(self._servers):
            self._at(number * REPORT_EVERY_NS // len(self._servers), "report", worker_id)
        for turn_id, request in self._requests.items():
            self._at(BEGINS_NS + request.at_ns, "arrive", turn_id)
        if self._sample_ns:
            self._at(BEGINS_NS, "sample")
        num_left = len(self._requests)
        while num_left and self._events:
            self.now_ns, _, kind, name = heappop(self._events)
            num_over = getattr(self, f"_on_{kind}")(name) or 0
            num_left -= num_over
            self._num_turns -= num_over

    def _at(self, at_ns: int, kind: str, name: str = "") -> None:
        self._num_events += 1
        heappush(self._events, (at_ns, self._num_events, kind, name))

    def _on_arrive(self, name: str) -> int:
        turn_id = TurnId(name)
        request = self._requests[turn_id]
        submit = TurnSubmit(
            turn_id=turn_id, frontend_id=FrontendId("f"), model_id=M,
            num_prompt_tokens=request.num_prompt, adapter=request.adapter,
            slo_tpot_ms=self._slo_ms,
        )  # fmt: skip
        self._num_turns += 1
        return self._perform(self._core.on_turns_submit(TurnsSubmit(turns=[submit]), self.now_ns))

    def _on_wake(self, _: str) -> int:
        return self._perform(self._core.on_wake(self.now_ns))

    def _on_sample(self, _: str) -> None:
        self._at(self.now_ns + self._sample_ns, "sample")
        sizes = [len(server.running) for server in self._servers.values()]
        sample = Sample(self.now_ns - BEGINS_NS, sizes, self._num_turns, self._num_tokens)
        self.samples.append(sample)

    def _on_report(self, name: str) -> int:
        server = self._servers[WorkerId(name)]
        server.num_reports += 1
        self._at(self.now_ns + REPORT_EVERY_NS, "report", name)
        waiting = [(each, self._requests[each]) for each in server.waiting]
        held = [
            *((each, request, server.made(request)) for each, request in server.running.items()),
            *((each, request, request.num_made) for each, request in waiting),
        ]
        report = WorkerReport(
            worker_id=server.worker_id,
            incarnation="a",
            seq=server.num_reports,
            host_id=HostId(name),
            state="ready",
            models=[ModelCard(model_id=M, source="", fingerprint="f", max_model_len=4096)],
            turns=[
                TurnRef(turn_id=each, attempt=request.attempt, num_generated=num_made)
                for each, request, num_made in held
            ],
            num_waiting_tokens=sum(request.num_tokens for _, request in waiting),
            interval_ns=REPORT_EVERY_NS,
            adapters=self._hashes,
            turns_running_max=self._shape.seats,
            rooms=[self._room(server)] if self._shape.num_blocks else [],
            step_models=self._steps.fits(),
            speeds=[self._steps.speeds()],
        )
        return self._perform(self._core.on_report(report, self.now_ns))

    def _room(self, server: Server) -> ModelRoom:
        num_waiting = sum(self._requests[each].num_tokens for each in server.waiting)
        return ModelRoom(
            model_id=M,
            num_turns=len(server.running) + len(server.waiting),
            num_blocks=self._shape.num_blocks,
            num_blocks_free=self._num_blocks_free(server) - ceil(num_waiting / BLOCK_TOKENS),
        )

    def _num_blocks_free(self, server: Server) -> int:
        """Half a block of each turn is empty, in the mean."""
        num_half = len(server.running) // 2
        return self._shape.num_blocks - num_half - ceil(server.num_context / BLOCK_TOKENS)

    def _on_step(self, name: str) -> int:
        """A step of this server is over."""
        server = self._servers[WorkerId(name)]
        server.is_stepping = False
        server.num_steps += 1
        server.num_context += len(server.running)
        self._num_tokens += len(server.running)
        for request in server.begun:
            request.first_ns = request.first_ns or self.now_ns
            if request.moved_ns:
                step_ns = self.now_ns - server.began_ns
                self.gaps.append(Gap(self.now_ns - request.moved_ns, step_ns))
                request.moved_ns = 0
        server.begun = []
        server.stepped_ns = self.now_ns
        ended = server.ends.pop(server.num_steps, [])
        for turn_id in ended:
            server.stop(turn_id).last_ns = self.now_ns
        self._begin(server)
        if not ended:
            return 0
        ends = [
            TurnEnd(
                turn_id=each, attempt=self._requests[each].attempt, reason="stop",
                num_generated=self._requests[each].num_made,
            )
            for each in ended
        ]  # fmt: skip
        message = TurnsEnded(turns=ends)
        return len(ended) + self._perform(self._core.on_turns_ended(message, self.now_ns))

    def _begin(self, server: Server) -> None:
        """The next step, with the prompts that came and have room."""
        shape = self._shape
        while shape.num_blocks and self._num_blocks_free(server) < 0 and len(server.running) > 1:
            newest = next(reversed(server.running))
            server.stop(newest)
            server.waiting.appendleft(newest)
            self.num_restarts += 1
        num_prompt = 0
        while (
            server.waiting
            and len(server.running) < shape.seats
            and len(server.begun) < shape.prompts_max
        ):
            turn_id = server.waiting[0]
            request = self._requests[turn_id]
            num_blocks = ceil(request.num_tokens / BLOCK_TOKENS)
            if shape.num_blocks and server.running and num_blocks > self._num_blocks_free(server):
                break
            beside = next(iter(server.running.values()), request)
            if shape.is_one_adapter and beside.adapter is not request.adapter:
                break
            server.waiting.popleft()
            num_prompt += request.num_to_compute
            server.begin(turn_id, request)
        if not server.running:
            return
        server.is_stepping, server.began_ns = True, self.now_ns
        batch = Batch(list(server.running.values()), server.num_context, num_prompt)
        step_ns = ceil(self._steps.step_ms(batch) * MS)
        self._at(self.now_ns + step_ns, "step", server.worker_id)

    def _perform(self, effects: Sequence[object]) -> int:
        """Returns how many turns were refused."""
        num_failed = 0
        for effect in effects:
            match effect:
                case StartTurn(worker_id, start):
                    self._start(self._servers[worker_id], start)
                case SendPrefetch(worker_id, prefetch) if prefetch.running is not None:
                    self._prefetch(worker_id, prefetch.running.turn_id)
                case WakeAt(at_ns):
                    self._at(max(at_ns, self.now_ns), "wake")
                case FailTurn():
                    num_failed += 1
        self.num_refused += num_failed
        return num_failed

    def _start(self, server: Server, start: TurnStart) -> None:
        """A turn comes, from where it ran before if it moves: its prompt is pulled at once."""
        turn_id, request = start.turn_id, self._requests[start.turn_id]
        request.attempt = start.attempt
        for before in self._servers.values():
            if turn_id in before.running:
                before.stop(turn_id)
                request.moved_ns = before.stepped_ns
            elif turn_id in before.waiting:
                before.waiting.remove(turn_id)
        server.waiting.append(turn_id)
        if not server.is_stepping:
            self._begin(server)

    def _prefetch(self, worker_id: WorkerId, turn_id: TurnId) -> None:
        """What a turn has that may move here comes."""
        before = next((s for s in self._servers.values() if turn_id in s.running), None)
        if before is not None:
            request = self._requests[turn_id]
            num_tokens = request.num_prompt + before.made(request)
            num_blocks = num_tokens // BLOCK_TOKENS
            fetch_ns = ceil(num_blocks * self._shape.block_ms * MS)
            self._at(self.now_ns + fetch_ns, "prefetched", f"{worker_id} {turn_id} {num_blocks}")

    def _on_prefetched(self, name: str) -> int:
        worker_id, turn_id, num_blocks = name.split()
        message = TurnPrefetched(
            turn_id=TurnId(turn_id), worker_id=WorkerId(worker_id), num_blocks=int(num_blocks)
        )
        return self._perform(self._core.on_turn_prefetched(message, self.now_ns))


def adapters_of(ranks: Sequence[int], image_bytes: int = 0) -> list[AdapterRef]:
    """One of each rank, every one another."""
    return [
        AdapterRef(adapter_hash=f"{number:0{HASH_CHARS}x}", lora_rank=rank, image_bytes=image_bytes)
        for number, rank in enumerate(ranks)
    ]


def requests_at(
    at_ns: Sequence[int],
    adapters: list[AdapterRef],
    shares: NDArray[np.float64],
    lengths: list[tuple[int, int]],
    rng: np.random.Generator,
) -> list[Request]:
    """A request at each of these instants.

    Args:
        shares: ``[adapters]``, of the requests.
        lengths: of prompts and outputs, drawn together.
    """
    which = rng.choice(len(adapters), len(at_ns), p=shares).tolist()
    drawn = rng.integers(len(lengths), size=len(at_ns)).tolist()
    return [
        Request(at, adapters[adapter], *lengths[length])
        for at, adapter, length in zip(at_ns, which, drawn, strict=True)
    ]


def poisson(rate: float, seconds: float, rng: np.random.Generator) -> list[int]:
    """Instants of arrivals, so many a second."""
    gaps = rng.exponential(1e9 / rate, int(rate * seconds))
    at_ns: list[int] = np.cumsum(gaps).astype(np.int64).tolist()
    return at_ns
