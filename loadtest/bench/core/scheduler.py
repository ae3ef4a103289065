"""What the scheduler's decisions cost among so many workers, for `symphony bench core`."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from loadtest.bench.core import samples
from loadtest.bench.core.driver import CoreBench
from loadtest.bench.core.samples import INTERVAL_NS
from loadtest.bench.core.timing import Took
from services.scheduler.core import (
    DEFAULT_POLICY,
    Effect,
    Limits,
    SchedulerCore,
    StartTurn,
    StartTurns,
    merge_effects,
)
from services.scheduler.policies import make_placement
from shared.ids import HostId, SessionId, TurnId, WorkerId
from shared.locations import HOSTS_SENT_MAX
from shared.wire.messages import (
    ExpectSession,
    PlacedTurn,
    TurnEnd,
    TurnRef,
    TurnsEnded,
    TurnsPlaced,
    TurnsSubmit,
    TurnSubmit,
    WorkerReport,
)
from shared.wire.shards import Share

EVENTS = 256  # of one kind in a round
KEPT_A_WORKER = 4  # places for turns that are announced and do not come during a round
SOON_NS = 3_000_000_000
EVENT_NS = 1_000
SHARDS = 4  # of a divided scheduler


def measure(fleets: Iterable[int], num_turns: int, num_rounds: int) -> dict[str, Any]:
    """Microseconds of each kind of event, for fleets of so many workers with so many turns each."""
    return {
        f"scheduler_{num_workers}": _measure(num_workers, num_turns, num_rounds)
        for num_workers in fleets
    }


def _measure(num_workers: int, num_turns: int, num_rounds: int) -> dict[str, float]:
    took = Took()
    idle = SchedulerBench(num_workers, took, Share(0, SHARDS))
    busy = SchedulerBench(num_workers, took)
    busy.fill(num_turns)
    for number in range(num_rounds):
        idle.sweep("report_0")
        idle.others_turns(number)
        busy.keep_places()
        busy.place("place_new", (SessionId(f"new-{number}-{at}") for at in range(EVENTS)))
        busy.place("place_known", busy.some_known(number), num_hosts=1)
        busy.place("place_known_8_hosts", busy.some_known(number), num_hosts=HOSTS_SENT_MAX)
        busy.announce(busy.some_known(number))
        busy.place("place_announced", busy.some_known(number), num_hosts=1)
        busy.sweep(f"report_{num_turns}")
    return took.us()


class SchedulerBench(CoreBench[Effect]):
    """A core that has reports of all workers.

    Args:
        share: of turns, that it has.
    """

    def __init__(self, num_workers: int, took: Took, share: Share | None = None) -> None:
        super().__init__(took, EVENT_NS)
        self._num_workers = num_workers
        limits = Limits()
        self._core = SchedulerCore(
            make_placement(DEFAULT_POLICY, limits), limits, self._now_ns, share=share or Share()
        )
        self._seq = 0
        self._num_submitted = 0
        self._known: list[SessionId] = []
        ids = map(samples.worker_id, range(num_workers))
        self._running: dict[WorkerId, dict[TurnId, int]] = {name: {} for name in ids}
        self._hosts = list(dict.fromkeys(map(samples.host_of, range(num_workers))))
        self.sweep("", with_speeds=True)
        while self._now_ns <= limits.learning_ns:
            self.sweep("")

    def fill(self, num_turns: int) -> None:
        """Place so many turns a worker, as they are placed: of sessions that are known then."""
        for number in range(num_turns):
            names = [
                SessionId(f"order-{number}/engineer-{at:06}") for at in range(self._num_workers)
            ]
            self._known += names
            self._submit("", names, 0)
            self.sweep("")
        on_them = sum(map(len, self._running.values()))
        assert on_them == num_turns * self._num_workers, "turns are waiting"

    def some_known(self, number: int) -> list[SessionId]:
        """Sessions whose last turn is known, others in each round."""
        start = number * EVENTS % max(len(self._known) - EVENTS, 1)
        return self._known[start : start + EVENTS]

    def keep_places(self) -> None:
        """Announce turns that do not come yet: they are load."""
        num = min(KEPT_A_WORKER * self._num_workers, len(self._known))
        self._expect("", (SessionId(f"kept-{at}") for at in range(num)), INTERVAL_NS * 100)

    def announce(self, sessions: Iterable[SessionId]) -> None:
        """A place is kept for these sessions' next turns."""
        self._expect("expect", sessions, SOON_NS)

    def place(self, name: str, sessions: Iterable[SessionId], num_hosts: int = 0) -> None:
        """A turn of each of these sessions comes, and is over again."""
        placed = self._submit(name, sessions, num_hosts)
        assert placed, "turns are waiting"
        ends = [
            TurnsEnded(turns=[TurnEnd(turn_id=turn_id, attempt=attempt, reason="stop")])
            for turn_id, attempt, _ in placed
        ]
        self._took.each("end", self._handled(self._core.on_turns_ended), ends)
        for turn_id, _, worker_id in placed:
            del self._running[worker_id][turn_id]

    def reasons(self, sessions: Iterable[SessionId]) -> set[str]:
        """Why turns of these sessions go where they go."""
        submits = [self._next_submit(session_id, 0) for session_id in sessions]
        feed = self._handled(self._core.on_turns_submit)
        answers = [feed(TurnsSubmit(turns=[submit])) for submit in submits]
        return {start.reason for start in _starts(answers)}

    def others_turns(self, number: int) -> None:
        """Another scheduler places a turn, which is over then."""
        names = (SessionId(f"other-{number}-{at}") for at in range(SHARDS * EVENTS))
        ids = [samples.turn_id(name, name) for name in names]
        ids = [turn_id for turn_id in ids if not Share(0, SHARDS).has_turn(turn_id)]
        workers = [samples.worker_id(at % self._num_workers) for at in range(len(ids))]
        feed = [
            TurnsPlaced(shard=1, turns=[PlacedTurn(turn_id=turn_id, worker_id=worker_id)])
            for turn_id, worker_id in zip(ids, workers, strict=True)
        ]
        self._took.each("other_placed", self._handled(self._core.on_turns_placed), feed)
        ends = [
            TurnsEnded(turns=[TurnEnd(turn_id=turn_id, attempt=1, reason="stop")])
            for turn_id in ids
        ]
        self._took.each("other_end", self._handled(self._core.on_turns_ended), ends)

    def sweep(self, name: str, *, with_speeds: bool = False) -> None:
        """All workers report, as often as to make a round; their silence is looked at meanwhile."""
        reports: list[WorkerReport] = []
        for _ in range(-(-EVENTS // self._num_workers) if name else 1):
            self._seq += 1
            reports += [
                samples.report(
                    number,
                    self._seq,
                    [
                        TurnRef(turn_id=turn_id, attempt=attempt, num_generated=self._seq)
                        for turn_id, attempt in self._running[samples.worker_id(number)].items()
                    ],
                    with_speeds=with_speeds,
                )
                for number in range(self._num_workers)
            ]
        on_report = self._handled(self._core.on_report, INTERVAL_NS // self._num_workers)
        self._each(name, on_report, reports)

    def _submit(
        self, name: str, sessions: Iterable[SessionId], num_hosts: int
    ) -> list[tuple[TurnId, int, WorkerId]]:
        """Turns that were placed: which attempt of each is where."""
        submits = [self._next_submit(session_id, num_hosts) for session_id in sessions]
        feed = self._handled(self._core.on_turns_submit)
        answers = self._each(name, feed, (TurnsSubmit(turns=[each]) for each in submits))
        placed = [
            (each.start.turn_id, each.start.attempt, each.worker_id) for each in _starts(answers)
        ]
        for turn_id, attempt, worker_id in placed:
            self._running[worker_id][turn_id] = attempt
        return placed

    def _next_submit(self, session_id: SessionId, num_hosts: int) -> TurnSubmit:
        self._num_submitted = at = self._num_submitted + 1
        hosts = [self._hosts[(at * 7 + n) % len(self._hosts)] for n in range(num_hosts)]
        kv_at: list[HostId] = list(islice(dict.fromkeys(hosts), num_hosts))
        return samples.submit(str(at), session_id, kv_at)

    def _expect(self, name: str, sessions: Iterable[SessionId], arrives_in_ns: int) -> None:
        expected = (
            ExpectSession(
                session_id=session_id,
                model_id=samples.MODEL,
                arrives_in_ns=arrives_in_ns,
                expires_in_ns=2 * arrives_in_ns,
                kv_at={self._hosts[at % len(self._hosts)]: samples.PROMPT_BLOCKS},
            )
            for at, session_id in enumerate(sessions)
        )
        self._each(name, self._handled(self._expected), expected)

    def _wake(self, at_ns: int) -> list[Effect]:
        return self._core.on_wake(at_ns)

    def _gathered(self, effects: list[Effect]) -> list[Effect]:
        return merge_effects(effects)

    def _expected(self, message: ExpectSession, now_ns: int) -> list[Effect]:
        return self._core.on_expect(message, now_ns)[1]


def _starts(answers: list[list[Effect]]) -> list[StartTurn]:
    of_workers = [each for effects in answers for each in effects if isinstance(each, StartTurns)]
    return [start for each in of_workers for start in each.starts]
