"""Servers whose steps take as long as adapters' ranks make them, under the production scheduler.

A server runs all of its turns in each step, computes the prompts that came since the last one in
it, and reports as a worker does. Its steps take what one of CaraServe's models says (section 5), so
only placement decides how long tokens take. Time is virtual; nothing waits for a network.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

import numpy as np
from numpy.typing import NDArray

from services.scheduler.core import (
    FailTurn,
    Limits,
    PlacementPolicy,
    SchedulerCore,
    StartTurn,
)
from shared.effects import WakeAt
from shared.ids import FrontendId, HostId, ModelId, TurnId, WorkerId
from shared.wire.messages import (
    AdapterRef,
    ModelCard,
    ModelSpeeds,
    StepModelFit,
    TurnEnd,
    TurnRef,
    TurnsEnded,
    TurnsSubmit,
    TurnSubmit,
    WorkerReport,
    pack_hashes,
)

M = ModelId("llama-2-7b")
MS = 1_000_000
SECOND = 1_000 * MS
REPORT_EVERY_NS = 500 * MS
TOKEN_MS = 0.25  # of a prompt: 14 GFLOP at half of an A10's 125 TFLOP/s
SEATS = 64


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a step takes: milliseconds, and as much again for each unit.

    Attributes:
        name: of the units, as `StepModelFit` has it.
    """

    name: str
    base_ms: float
    unit_ms: float

    def step_ms(self, ranks: list[int], num_prompt_tokens: int) -> float:
        """Of turns on adapters of these ranks."""
        units = len(ranks) * max(ranks, default=0) if self.name == "padded" else sum(ranks)
        return self.base_ms + self.unit_ms * units + TOKEN_MS * num_prompt_tokens


@dataclass(slots=True)
class Request:
    """A turn: when it comes, on which adapter, and how long it is.

    Attributes:
        first_ns, last_ns: of its tokens; 0: none yet.
    """

    at_ns: int
    adapter: AdapterRef
    num_prompt: int
    num_output: int
    num_made: int = 0
    first_ns: int = 0
    last_ns: int = 0

    @property
    def token_ms(self) -> float | None:
        """Mean time between its tokens; None: it is not over."""
        if self.num_made < self.num_output:
            return None
        return (self.last_ns - self.first_ns) / max(self.num_output - 1, 1) / MS


@dataclass(slots=True)
class _Server:
    worker_id: WorkerId
    running: dict[TurnId, Request] = field(default_factory=dict)
    waiting: deque[TurnId] = field(default_factory=deque)
    num_reports: int = 0
    is_stepping: bool = False


class LoraServers:
    """Args:
    requests: in the order in which they come.
    slo_ms: for the mean time between a turn's tokens, as its header would say.
    """

    def __init__(
        self,
        policy: type[PlacementPolicy],
        kernel: Kernel,
        num_servers: int,
        requests: list[Request],
        slo_ms: float,
    ) -> None:
        limits = Limits(learning_ns=0)
        self._kernel = kernel
        self._slo_ms = slo_ms
        self._core = SchedulerCore(policy(limits), limits, 0)
        ids = [WorkerId(f"s{number:02}") for number in range(num_servers)]
        self._servers = {worker_id: _Server(worker_id) for worker_id in ids}
        self._requests = {TurnId(f"t{n}"): each for n, each in enumerate(requests)}
        self._hashes = pack_hashes(sorted({each.adapter.adapter_hash for each in requests}))
        self._events: list[tuple[int, int, str, str]] = []
        self._num_events = 0
        self.now_ns = 0

    def run(self) -> None:
        """Until all requests are over."""
        for number, worker_id in enumerate(self._servers):
            self._at(number * REPORT_EVERY_NS // len(self._servers), "report", worker_id)
        for turn_id, request in self._requests.items():
            self._at(SECOND + request.at_ns, "arrive", turn_id)
        num_left = len(self._requests)
        while num_left and self._events:
            self.now_ns, _, kind, name = heappop(self._events)
            num_left -= getattr(self, f"_on_{kind}")(name) or 0

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
        return self._perform(self._core.on_turns_submit(TurnsSubmit(turns=[submit]), self.now_ns))

    def _on_wake(self, _: str) -> int:
        return self._perform(self._core.on_wake(self.now_ns))

    def _on_report(self, name: str) -> int:
        server = self._servers[WorkerId(name)]
        server.num_reports += 1
        self._at(self.now_ns + REPORT_EVERY_NS, "report", name)
        kernel = self._kernel
        held = [*server.running, *server.waiting]
        waiting = [self._requests[turn_id] for turn_id in server.waiting]
        report = WorkerReport(
            worker_id=server.worker_id,
            incarnation="a",
            seq=server.num_reports,
            host_id=HostId(name),
            state="ready",
            models=[ModelCard(model_id=M, source="", fingerprint="f", max_model_len=4096)],
            turns=[
                TurnRef(turn_id=each, num_generated=self._requests[each].num_made) for each in held
            ],
            num_waiting_tokens=sum(each.num_prompt for each in waiting),
            interval_ns=REPORT_EVERY_NS,
            adapters=self._hashes,
            turns_running_max=SEATS,
            step_models=[
                StepModelFit(
                    model_id=M, name=kernel.name, base_ns=kernel.base_ms * MS, row_ns=0.0,
                    unit_ns=kernel.unit_ms * MS, r2=1.0,
                )
            ],
            speeds=[
                ModelSpeeds(model_id=M, token_ms=TOKEN_MS, step_ms=kernel.base_ms, row_ms=1e-3)
            ],
        )  # fmt: skip
        return self._perform(self._core.on_report(report, self.now_ns))

    def _on_step(self, name: str) -> int:
        """A step of this server is over."""
        server = self._servers[WorkerId(name)]
        server.is_stepping = False
        ended = []
        for turn_id, request in server.running.items():
            request.num_made += 1
            request.last_ns = self.now_ns
            request.first_ns = request.first_ns or self.now_ns
            if request.num_made >= request.num_output:
                ended.append(turn_id)
        for turn_id in ended:
            del server.running[turn_id]
        self._begin(server)
        if not ended:
            return 0
        ends = [
            TurnEnd(
                turn_id=each, attempt=1, reason="stop",
                num_generated=self._requests[each].num_made,
            )
            for each in ended
        ]  # fmt: skip
        message = TurnsEnded(turns=ends)
        return len(ended) + self._perform(self._core.on_turns_ended(message, self.now_ns))

    def _begin(self, server: _Server) -> None:
        """The next step, with the prompts that came."""
        num_prompt = 0
        while server.waiting and len(server.running) < SEATS:
            turn_id = server.waiting.popleft()
            server.running[turn_id] = self._requests[turn_id]
            num_prompt += self._requests[turn_id].num_prompt
        if not server.running:
            return
        ranks = [each.adapter.lora_rank for each in server.running.values()]
        server.is_stepping = True
        step_ns = ceil(self._kernel.step_ms(ranks, num_prompt) * MS)
        self._at(self.now_ns + step_ns, "step", server.worker_id)

    def _perform(self, effects: Sequence[object]) -> int:
        """Returns how many turns were refused."""
        num_failed = 0
        for effect in effects:
            match effect:
                case StartTurn(worker_id, start):
                    server = self._servers[worker_id]
                    server.waiting.append(start.turn_id)
                    if not server.is_stepping:
                        self._begin(server)
                case WakeAt(at_ns):
                    self._at(max(at_ns, self.now_ns), "wake")
                case FailTurn():
                    num_failed += 1
        return num_failed


def requests_of(
    adapters: list[AdapterRef],
    shares: NDArray[np.float64],
    lengths: list[tuple[int, int]],
    rate: float,
    seconds: float,
    seed: int = 19,
) -> list[Request]:
    """Poisson arrivals.

    Args:
        shares: ``[adapters]``, of the requests.
        lengths: of prompts and outputs, drawn together.
        rate: a second.
    """
    rng = np.random.default_rng(seed)
    num = int(rate * seconds)
    at_ns = np.cumsum(rng.exponential(1e9 / rate, num)).astype(np.int64).tolist()
    which = rng.choice(len(adapters), num, p=shares).tolist()
    drawn = rng.integers(len(lengths), size=num).tolist()
    return [
        Request(at, adapters[adapter], *lengths[length])
        for at, adapter, length in zip(at_ns, which, drawn, strict=True)
    ]
