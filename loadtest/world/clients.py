"""People and agents: sessions of several turns, and what each turn must be answered."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadtest.world.jobs import SLO_NS, value_of
from loadtest.world.model import BREAKER, KILLER
from loadtest.world.timeline import MS, SECOND
from services.frontend.core.job_events import Done
from services.frontend.core.job_events import Fail as JobsFail
from services.frontend.core.turns import Deliver, Fail, NewTurn
from shared.ids import JobId, SessionId, TenantId, TurnId
from shared.messages import Advisory, SamplingParams
from shared.subjects import ADVISORY_SUBMIT

if TYPE_CHECKING:
    from loadtest.world.frontend import Frontend
    from loadtest.world.world import World

TENANTS = (TenantId("a"), TenantId("b"))
RETRY_MAX_NS = SECOND
PATIENT_SLO_NS = 2 * SECOND  # time to run a job again
CALL_TIMEOUT_NS = 5 * SECOND
UNSERVED_CODES = {"no_worker", "no_capacity", "worker_lost"}


@dataclass
class Session:
    """A conversation: everything that was said, and how many turns are to come."""

    session_id: SessionId
    tenant: TenantId
    history: list[int]
    turns_left: int


@dataclass
class ClientTurn:
    """A turn as its client sees it.

    Attributes:
        moved_at_ns: when it last heard something, or could not have.
        calm_since_ns: nothing but deaths went wrong since then.
        end: how it ended: a finish reason, the code of a failure, or ``gone``.
    """

    turn_id: TurnId
    session: Session
    frontend: "Frontend"
    frontend_life: int
    prompt: list[int]
    sampling: SamplingParams
    opened_at_ns: int
    moved_at_ns: int
    calm_since_ns: int
    got: list[int] = field(default_factory=list)
    end: str | None = None
    ended_at_ns: int = 0


class Clients:
    """Attributes:
    turns: every turn that was ever asked for.
    job_ends: how each request for one-shot jobs ended, each time it did.
    """

    def __init__(self, world: "World", num_sessions: int, asking_ns: int) -> None:
        self._world = world
        self._random = world.random
        self.turns: dict[TurnId, ClientTurn] = {}
        self._open: dict[TurnId, ClientTurn] = {}
        self._num_waiting = 0  # sessions whose next turn is still to be asked
        kinds = {"killer": KILLER, "breaker": BREAKER}
        self._poison = [seed for kind, seed in kinds.items() if kind in world.faults.kinds]
        self._num_requests = 0
        self.job_ends: dict[str, list[str]] = {}
        self._job_frontends: dict[str, Frontend] = {}
        for _ in range(self._random.randrange(8)):
            world.timeline.after(self._random.randrange(asking_ns), self._ask_jobs)
        system = [self._tokens(self._random.randrange(1, 14)) for _ in range(2)]
        for number in range(num_sessions):
            session = Session(
                SessionId(f"s{number}"),
                self._random.choice(TENANTS),
                list(self._random.choice(system)),
                self._random.randrange(1, 6 if world.is_crowded else 4),
            )
            self._ask_in(self._random.randrange(asking_ns), session)

    def check_progress(self, *, is_served: bool, is_undisturbed: bool) -> None:
        """No open turn stands still while somebody is there to serve it, and less so while nothing
        goes wrong but that processes die.
        """
        now_ns, options = self._world.timeline.now_ns, self._world.options
        for turn in self._open.values():
            is_heard = is_served and turn.frontend.is_well
            if not is_heard:
                turn.moved_at_ns = now_ns
            if not (
                is_heard and is_undisturbed
            ):  # what was asked meanwhile is given up a while later
                turn.calm_since_ns = now_ns + CALL_TIMEOUT_NS
            is_still = now_ns - turn.moved_at_ns > options.stall_max_ns
            calm_since_ns = max(turn.moved_at_ns, turn.calm_since_ns)
            is_still = is_still or now_ns - calm_since_ns > options.calm_stall_max_ns
            assert not is_still, f"{turn.turn_id} stands still since {turn.moved_at_ns / MS} ms"

    @property
    def are_done(self) -> bool:
        """Nobody waits for anything any more."""
        return not self._open and not self._num_waiting and all(self.job_ends.values())

    def is_job_over(self, job_id: JobId) -> bool:
        """Whether its client waits for it no more."""
        return bool(self.job_ends[job_id.partition(".")[0]])

    def on_broken(self, frontend: "Frontend") -> None:
        """A frontend died: its clients ask again, elsewhere if they can."""
        for turn in [turn for turn in self._open.values() if turn.frontend is frontend]:
            self._end(turn, "gone")
            turn.session.turns_left += 1
            self._ask_in(self._random.randrange(RETRY_MAX_NS), turn.session)

        for request_id, ends in self.job_ends.items():
            if not ends and self._job_frontends[request_id] is frontend:
                ends.append("gone")

    def announce_last(self) -> None:
        """An advisory of a new session, at a time when everybody is well."""
        self._poison.clear()
        self._last = Session(SessionId("last"), TENANTS[0], self._tokens(5), 1)
        self._advise(self._last, SECOND)

    def ask_last(self) -> ClientTurn:
        """Its turn."""
        self._ask_jobs(is_patient=True)
        self._num_waiting += 1
        self._ask(self._last)
        return next(reversed(self.turns.values()))

    def _ask_jobs(self, *, is_patient: bool = False) -> None:
        """A request of some inputs for the one-shot model; few hang up, if they are not patient."""
        frontends = [frontend for frontend in self._world.frontends if frontend.is_ready]
        if not frontends:
            return
        frontend = self._random.choice(frontends)
        self._num_requests += 1
        request_id = f"r{self._num_requests}"
        inputs = [f"{request_id}/{number}" for number in range(self._random.choice([1, 1, 3]))]
        ends = self.job_ends[request_id] = []
        self._job_frontends[request_id] = frontend

        def on_end(event: Done | JobsFail) -> None:
            if ends == ["gone"]:
                return
            if isinstance(event, Done):
                assert event.values == [value_of(each) for each in inputs], "wrong values"
            ends.append("done" if isinstance(event, Done) else event.outcome)
            assert len(ends) == 1, f"{request_id} ended as {ends}"

        slo_ns = self._random.choice([SLO_NS, PATIENT_SLO_NS])
        if is_patient:  # a model that looked slow for a while may turn down a request that is not
            slo_ns = PATIENT_SLO_NS
        frontend.run(frontend.life, lambda: frontend.jobs.open(request_id, inputs, slo_ns, on_end))
        if not is_patient and self._random.random() < 0.1:
            delay_ns = self._random.randrange(200 * MS)
            self._world.timeline.after(delay_ns, lambda: self._hang_up_jobs(request_id))

    def _hang_up_jobs(self, request_id: str) -> None:
        if not self.job_ends[request_id]:
            self.job_ends[request_id].append("gone")
            frontend = self._job_frontends[request_id]
            frontend.run(frontend.life, lambda: frontend.jobs.hang_up(request_id))

    def _ask_in(self, delay_ns: int, session: Session) -> None:
        self._num_waiting += 1
        self._world.timeline.after(delay_ns, lambda: self._ask(session))

    def _ask(self, session: Session) -> None:
        """The session's next turn, on all that was said before."""
        self._num_waiting -= 1
        world, random = self._world, self._random
        frontends = [frontend for frontend in world.frontends if frontend.is_ready]
        if not frontends:
            self._ask_in(random.randrange(RETRY_MAX_NS) + 1, session)
            return
        frontend = random.choice(frontends)
        session.turns_left -= 1
        if len(session.history) > world.model.max_model_len * 2 // 3:
            session.history = self._tokens(3)
        prompt = session.history + self._tokens(random.randrange(1, 10))
        sampling = SamplingParams(
            max_tokens=random.randrange(1, 12),
            ignore_eos=random.random() < 0.7,
            seed=self._poison.pop() if self._poison and random.random() < 0.5 else 0,
        )
        turn = ClientTurn(
            TurnId(f"t{len(self.turns)}"), session, frontend, frontend.life, prompt, sampling,
            world.timeline.now_ns, world.timeline.now_ns, world.timeline.now_ns,
        )  # fmt: skip
        self.turns[turn.turn_id] = self._open[turn.turn_id] = turn
        new = NewTurn(
            turn_id=turn.turn_id,
            model_id=world.model.model_id,
            prompt=prompt,
            sampling=sampling,
            tenant=session.tenant,
            session_id=session.session_id,
            priority=random.choice([0, 0, 1]),
        )
        life = frontend.life

        def on_news(news: Deliver | Fail) -> None:
            self._on_news(turn, news)

        frontend.run(life, lambda: frontend.open(new, on_news))
        if random.random() < 0.08:
            world.timeline.after(random.randrange(SECOND), lambda: self._hang_up(turn))

    def _hang_up(self, turn: ClientTurn) -> None:
        if turn.end is None:
            self._end(turn, "gone")
            frontend, life = turn.frontend, turn.frontend_life
            frontend.run(life, lambda: frontend.hang_up(turn.turn_id))
            self._go_on(turn.session)

    def _on_news(self, turn: ClientTurn, news: Deliver | Fail) -> None:
        if turn.end == "gone":
            return
        assert turn.end is None, f"{turn.turn_id} ended as {turn.end}, and goes on"
        if isinstance(news, Fail):
            self._world.note(f"{turn.turn_id} fails: {news.failure.code}")
            self._end(turn, news.failure.code)
            self._go_on(turn.session)
            return
        model = self._world.model
        turn.moved_at_ns = self._world.timeline.now_ns
        for token in news.tokens:
            before = turn.prompt + turn.got
            is_over = model.finish(turn.prompt, turn.got, turn.sampling) is not None
            assert not is_over, f"{turn.turn_id} goes on after its end"
            assert model.may_follow(before, token), f"{turn.turn_id}: {token} after {before}"
            turn.got.append(token)
        if news.finish is not None:
            finish = model.finish(turn.prompt, turn.got, turn.sampling)
            assert news.finish == finish, (
                f"{turn.turn_id} ended as {news.finish} after {turn.got}, not as {finish}"
            )
            self._end(turn, news.finish)
            turn.session.history = turn.prompt + turn.got
            self._go_on(turn.session)

    def _end(self, turn: ClientTurn, how: str) -> None:
        turn.end = how
        turn.ended_at_ns = self._world.timeline.now_ns
        del self._open[turn.turn_id]

    def _go_on(self, session: Session) -> None:
        """Think, perhaps be seen typing, and ask again."""
        if not session.turns_left:
            return
        think_ns = self._random.randrange(2 * SECOND) // (8 if self._world.is_crowded else 1)
        if self._random.random() < 0.6:
            self._advise(session, think_ns)
        # Or only as the turn comes, or too late, which matters where history is slow to come.
        if self._random.random() < (0.8 if self._world.is_crowded else 0.2):
            late_ns = max(think_ns + self._random.randrange(-50, 100) * MS, 0)
            self._world.timeline.after(late_ns, lambda: self._advise(session, 0))
        self._ask_in(think_ns, session)

    def _advise(self, session: Session, in_ns: int) -> None:
        frontends = [frontend for frontend in self._world.frontends if frontend.is_ready]
        if not frontends:
            return
        advisory = Advisory(
            session_id=session.session_id,
            tenant=session.tenant,
            model_id=self._world.model.model_id,
            expected_arrival=self._random.choice([None, in_ns / SECOND]),
            priority=self._random.randrange(3),
        )
        frontend = self._random.choice(frontends)
        frontend.run(
            frontend.life,
            lambda: self._world.wires.request(
                frontend, ADVISORY_SUBMIT, advisory, lambda _: None, lambda _: None,
                timeout_ns=500 * MS,
            ),
        )  # fmt: skip

    def _tokens(self, length: int) -> list[int]:
        return [self._random.randrange(1, self._world.model.vocab_size) for _ in range(length)]
