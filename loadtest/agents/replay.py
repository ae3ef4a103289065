"""A trace of agents replayed in virtual time, call by call as its calls depend on each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from statistics import mean, median
from typing import Any

from loadtest.agents.calls import AgentTrace, Call
from loadtest.agents.policies import Learned, Policy, Told
from services.tracker.core.agents import AgentFollower, AgentLimits, CallGraph
from shared.ids import DEFAULT_TENANT

BETWEEN_S = 60.0  # workflows

Seconds = Callable[[Call], float]
Waits = Callable[[Call, int, float | None], float]


def recorded_s(call: Call) -> float:
    """How long a call took when it was recorded."""
    return call.end_s - call.start_s


def no_wait(call: Call, num_history: int, lead_s: float | None) -> float:
    """Nobody waits for history."""
    return 0.0


@dataclass(slots=True)
class Measured:
    """What a replay showed.

    Attributes:
        num_calls: all of them.
        num_led_to: those that are not the first of their workflow.
        num_new: of those, announced in a session that was not there yet.
        num_prefixes: of those, by what their agent's prompts begin with.
        leads_s, errors_s: of those that were announced.
        times_s: from the beginning to the end of each workflow.
    """

    num_calls: int = 0
    num_led_to: int = 0
    num_new: int = 0
    num_prefixes: int = 0
    leads_s: list[float] = field(default_factory=list)
    errors_s: list[float] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    def summary(self, policy: Policy, *, is_timed: bool) -> dict[str, Any]:
        """The figures that `bench agents` prints; None where they mean nothing."""
        lives = policy.num_used + policy.num_expired
        found = {
            "recall": round(len(self.leads_s) / self.num_led_to, 3) if self.num_led_to else None,
            "new_session_share": round(self.num_new / self.num_led_to, 3)
            if self.num_led_to
            else None,
            "prefix_share": round(self.num_prefixes / self.num_new, 3) if self.num_new else None,
            "precision": round(policy.num_used / lives, 3) if lives else None,
            "hints_per_call": round(policy.num_given / self.num_calls, 3),
            "lead_s": round(mean(self.leads_s), 2) if self.leads_s else None,
            "arrival_error_s": round(median(self.errors_s), 2) if self.errors_s else None,
            "time_s": round(mean(self.times_s), 2) if self.times_s else None,
        }
        return found if is_timed else found | dict.fromkeys(("lead_s", "arrival_error_s", "time_s"))


def learn(
    trace: AgentTrace,
    limits: AgentLimits,
    seconds: Seconds = recorded_s,
    *,
    application: str = "",
) -> CallGraph:
    """What the production core learns from a trace."""
    follower = AgentFollower(limits)
    replay(trace, Learned(follower), seconds=seconds)
    return follower.graph(DEFAULT_TENANT, application)


def replay(
    trace: AgentTrace, policy: Policy, *, seconds: Seconds = recorded_s, waits: Waits = no_wait
) -> Measured:
    """Run all workflows one after another.

    Args:
        seconds: how long a call takes once its history is there.
        waits: how long it waits for that, by the tokens of its history and how long before it
            was announced (None: not at all).
    """
    measured = Measured()
    now_s = 0.0
    for calls in trace.workflows():
        run = _Run(calls, policy, seconds, waits, measured, now_s)
        ended_s = run.run()
        if len(calls) > 1:
            measured.times_s.append(ended_s - now_s)
        policy.over(calls[0].workflow)
        now_s = ended_s + BETWEEN_S
    return measured


class _Run:
    """One workflow. A call begins as long after all calls that had ended before it as it did when
    it was recorded.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        policy: Policy,
        seconds: Seconds,
        waits: Waits,
        measured: Measured,
        now_s: float,
    ) -> None:
        self._calls = calls
        self._policy = policy
        self._seconds = seconds
        self._waits = waits
        self._measured = measured
        self._began_s: dict[int, float] = {}
        self._history: dict[str, int] = {}  # tokens of each session
        self._before = [
            [other for other, each in enumerate(calls) if other != index and _leads(each, call)]
            for index, call in enumerate(calls)
        ]
        self._num_open = [len(before) for before in self._before]
        self._events: list[tuple[float, int, int]] = []  # when; 0: ends, 1: begins; which
        first_s = calls[0].start_s
        for index, call in enumerate(calls):
            if not self._before[index]:
                heappush(self._events, (now_s + call.start_s - first_s, 1, index))

    def run(self) -> float:
        """Returns when the last call has ended, s."""
        at_s = 0.0
        while self._events:
            at_s, begins, index = heappop(self._events)
            (self._begin if begins else self._end)(index, at_s)
        assert len(self._began_s) == len(self._calls), "a call waits for one that does not come"
        return at_s

    def _begin(self, index: int, now_s: float) -> None:
        call = self._calls[index]
        led_from = self._latest(index)
        led_from_s = None if led_from is None else self._began_s[led_from]
        told: Told = self._policy.begin(call, now_s, led_from_s)
        self._began_s[index] = now_s
        measured = self._measured
        measured.num_calls += 1
        if led_from is not None:
            measured.num_led_to += 1
            measured.num_new += told.is_new
            measured.num_prefixes += told.has_prefix
            if told.lead_s is not None:
                measured.leads_s.append(told.lead_s)
            if told.error_s is not None:
                measured.errors_s.append(told.error_s)
        history = min(self._history.get(call.session, 0), call.prompt_tokens)
        wait_s = self._waits(call, history, told.lead_s)
        heappush(self._events, (now_s + wait_s + self._seconds(call), 0, index))

    def _end(self, index: int, now_s: float) -> None:
        call = self._calls[index]
        self._history[call.session] = call.prompt_tokens + call.output_tokens
        self._policy.end(call, now_s)
        for other, before in enumerate(self._before):
            if index in before:
                self._num_open[other] -= 1
                if not self._num_open[other]:
                    gap_s = self._calls[other].start_s - max(self._calls[i].end_s for i in before)
                    heappush(self._events, (now_s + gap_s, 1, other))

    def _latest(self, index: int) -> int | None:
        """The call that led to this one: of those before it, the one that ended last."""
        return max(self._before[index], key=lambda i: self._calls[i].end_s, default=None)


def _leads(earlier: Call, later: Call) -> bool:
    return earlier.end_s <= later.start_s and earlier.start_s < later.start_s
