"""People and agents: sessions of several turns, and what each turn must be answered."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from loadtest.sim.oneshot import SLO_NS, value_of
from loadtest.sim.timeline import MS, SECOND
from loadtest.world.deployment import SimDeployment
from loadtest.world.frontend import Frontend
from loadtest.world.hinters import LAST_TENANT, TENANTS, Hinters
from loadtest.world.ledger import ClientTurn, Ledger, Session
from loadtest.world.model import ADAPTERS, BREAKER, KILLER
from services.frontend.core.turns.job_events import Done
from services.frontend.core.turns.job_events import Fail as JobsFail
from services.frontend.core.turns.turns import Deliver, Fail, NewTurn
from shared.ids import SessionId, TurnId
from shared.wire.messages import AdapterRef, Advisory, AgentRef, SamplingParams
from shared.wire.shards import expected_as, turn_id_in

RETRY_MAX_NS = SECOND
PATIENT_SLO_NS = 2 * SECOND  # time to run a job again
CALL_TIMEOUT_NS = 5 * SECOND
WORKFLOWS = ("w0", "w1", "w2")  # of every tenant
AGENTS = ("planner", "writer", "reader")
AGENTS_SHARE = 0.5  # of worlds: most sessions are agents'
ANEW_SHARE = 0.5  # of those: agents take up every piece of work in a session of its own
CHANGE_SHARE = 0.1  # of turns that go on, on another adapter


class Clients:
    """Everybody who asks.

    Args:
        asking_ns: sessions begin, and jobs are asked for, in that time.
        hinters: who else announces turns.
    """

    def __init__(
        self,
        deployment: SimDeployment,
        frontends: Sequence[Frontend],
        ledger: Ledger,
        num_sessions: int,
        asking_ns: int,
        hinters: Hinters,
    ) -> None:
        self._hinters = hinters
        self._house = deployment
        self._timeline = deployment.timeline
        self._random = deployment.random
        self._frontends = frontends
        self._ledger = ledger
        for frontend in frontends:
            frontend.connect(partial(self._on_broken, frontend))
        self._open: dict[TurnId, tuple[ClientTurn, Frontend]] = {}
        self._num_waiting = 0  # sessions whose next turn is still to be asked
        kinds = {"killer": KILLER, "breaker": BREAKER}
        self._poison = [seed for kind, seed in kinds.items() if kind in deployment.fault_kinds]
        self._num_requests = 0
        self._job_frontends: dict[str, Frontend] = {}
        for _ in range(self._random.randrange(8)):
            self._timeline.after(self._random.randrange(asking_ns), self._ask_jobs)
        # So few that turns share them, or so many that they cannot be there together.
        self._adapters = self._random.sample(ADAPTERS, self._random.choice([0, 1, 3, 6]))
        system = [self._tokens(self._random.randrange(1, 14)) for _ in range(2)]
        has_agents = deployment.agent_random.random() < AGENTS_SHARE
        begins_anew = has_agents and deployment.agent_random.random() < ANEW_SHARE
        self._system_of: dict[str, list[int]] = {}  # of agents whose sessions have one turn each
        if begins_anew:
            self._system_of = {agent: self._tokens(9) for agent in AGENTS}
        for number in range(num_sessions):
            session = Session(
                SessionId(f"s{number}"),
                self._random.choice(TENANTS),
                list(self._random.choice(system)),
                self._random.randrange(1, 6 if deployment.is_crowded else 4),
                self._some_adapter(),
                self._some_agent() if has_agents else None,
            )
            if session.agent is not None and begins_anew:
                session = self._anew(session)
            self._ask_in(self._random.randrange(asking_ns), session)

    def check_progress(
        self, *, is_served: bool, is_undisturbed: bool, stall_max_ns: int, calm_stall_max_ns: int
    ) -> None:
        """No open turn stands still while a worker could serve it, and less so while nothing
        goes wrong but that processes die.
        """
        now_ns = self._timeline.now_ns
        for turn, frontend in self._open.values():
            is_heard = is_served and frontend.is_well
            if not is_heard:
                turn.moved_at_ns = now_ns
            if not (
                is_heard and is_undisturbed
            ):  # what was asked meanwhile is given up a while later
                turn.calm_since_ns = now_ns + CALL_TIMEOUT_NS
            is_still = now_ns - turn.moved_at_ns > stall_max_ns
            calm_since_ns = max(turn.moved_at_ns, turn.calm_since_ns)
            is_still = is_still or now_ns - calm_since_ns > calm_stall_max_ns
            assert not is_still, f"{turn.turn_id} stands still since {turn.moved_at_ns / MS} ms"

    @property
    def are_done(self) -> bool:
        """No request is open any more."""
        return not self._open and not self._num_waiting and all(self._ledger.job_ends.values())

    def _on_broken(self, frontend: Frontend) -> None:
        """A frontend died: its clients ask again, elsewhere if they can."""
        for turn in [turn for turn, at in self._open.values() if at is frontend]:
            self._end(turn, "gone")
            turn.session.turns_left += 1
            self._ask_in(self._random.randrange(RETRY_MAX_NS), turn.session)

        for request_id, ends in self._ledger.job_ends.items():
            if not ends and self._job_frontends[request_id] is frontend:
                ends.append("gone")

    def announce_last(self) -> None:
        """An advisory of a new session, at a time when everybody is well."""
        self._poison.clear()
        self._last = Session(SessionId("last"), LAST_TENANT, self._tokens(5), 1)
        self._advise(self._last, SECOND)

    def ask_last(self) -> ClientTurn:
        """Its turn."""
        self._ask_jobs(is_patient=True)
        self._num_waiting += 1
        self._ask(self._last)
        return next(reversed(self._ledger.turns.values()))

    def _ask_jobs(self, *, is_patient: bool = False) -> None:
        """A request of some inputs for the one-shot model; few hang up, if they are not patient."""
        frontends = [frontend for frontend in self._frontends if frontend.is_ready]
        if not frontends:
            return
        frontend = self._random.choice(frontends)
        self._num_requests += 1
        request_id = f"r{self._num_requests}"
        inputs = [f"{request_id}/{number}" for number in range(self._random.choice([1, 1, 3]))]
        ends = self._ledger.job_ends[request_id] = []
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
            self._timeline.after(delay_ns, lambda: self._hang_up_jobs(request_id))

    def _hang_up_jobs(self, request_id: str) -> None:
        if not self._ledger.job_ends[request_id]:
            self._ledger.job_ends[request_id].append("gone")
            frontend = self._job_frontends[request_id]
            frontend.run(frontend.life, lambda: frontend.jobs.hang_up(request_id))

    def _ask_in(self, delay_ns: int, session: Session) -> None:
        self._num_waiting += 1
        self._timeline.after(delay_ns, lambda: self._ask(session))

    def _ask(self, session: Session) -> None:
        """The session's next turn, on all that was said before."""
        self._num_waiting -= 1
        timeline, model, random = self._timeline, self._house.model, self._random
        frontends = [frontend for frontend in self._frontends if frontend.is_ready]
        if not frontends:
            self._ask_in(random.randrange(RETRY_MAX_NS) + 1, session)
            return
        frontend = random.choice(frontends)
        if self._house.has_twin():
            twin = replace(session, history=list(session.history), turns_left=1)
            self._ask_in(0, twin)
        session.turns_left -= 1
        if len(session.history) > model.max_model_len * 2 // 3:
            session.history = self._tokens(3)
        prompt = session.history + self._tokens(random.randrange(1, 10))
        sampling = SamplingParams(
            max_tokens=random.randrange(1, 12),
            ignore_eos=random.random() < 0.7,
            seed=self._poison.pop() if self._poison and random.random() < 0.5 else 0,
        )
        if random.random() < CHANGE_SHARE:
            session.adapter = self._some_adapter()
        name = expected_as(session.session_id, session.agent, is_new=not session.history)
        turn_id = turn_id_in(f"t{len(self._ledger.turns)}", session.tenant, name)
        turn = ClientTurn(
            turn_id, session, prompt, sampling,
            timeline.now_ns, timeline.now_ns, timeline.now_ns, session.adapter,
        )  # fmt: skip
        self._ledger.turns[turn.turn_id] = turn
        self._open[turn.turn_id] = (turn, frontend)
        new = NewTurn(
            turn_id=turn.turn_id,
            model_id=model.model_id,
            prompt=prompt,
            sampling=sampling,
            tenant=session.tenant,
            session_id=session.session_id,
            priority=random.choice([0, 0, 1, 2]),
            adapter=session.adapter,
            agent=session.agent,
            kv_expiry_s=self._house.draw_expiry_s(),
        )
        life = frontend.life

        def on_news(news: Deliver | Fail) -> None:
            self._on_news(turn, news)

        frontend.run(life, lambda: frontend.open(new, on_news))
        if random.random() < 0.08:
            timeline.after(random.randrange(SECOND), lambda: self._hang_up(turn, frontend, life))

    def _hang_up(self, turn: ClientTurn, frontend: Frontend, life: int) -> None:
        if turn.end is None:
            self._end(turn, "gone")
            frontend.run(life, lambda: frontend.hang_up(turn.turn_id))
            self._go_on(turn.session)

    def _on_news(self, turn: ClientTurn, news: Deliver | Fail) -> None:
        if turn.end == "gone":
            return
        assert turn.end is None, f"{turn.turn_id} ended as {turn.end}, and goes on"
        if isinstance(news, Fail):
            self._timeline.note(f"{turn.turn_id} fails: {news.failure.code}")
            self._end(turn, news.failure.code)
            self._go_on(turn.session)
            return
        model = self._house.model
        turn.moved_at_ns = self._timeline.now_ns
        for token in news.tokens:
            before = turn.prompt + turn.got
            is_over = model.finish(turn.prompt, turn.got, turn.sampling) is not None
            assert not is_over, f"{turn.turn_id} goes on after its end"
            assert model.may_follow(before, token, turn.adapter_hash), (
                f"{turn.turn_id}: {token} after {before}"
            )
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
        turn.ended_at_ns = self._timeline.now_ns
        del self._open[turn.turn_id]

    def _go_on(self, session: Session) -> None:
        """Think, perhaps be seen typing, and ask again."""
        if not session.turns_left:
            return
        think_ns = self._random.randrange(2 * SECOND) // (8 if self._house.is_crowded else 1)
        if self._system_of and session.agent is not None:
            self._ask_in(think_ns, self._anew(session))
            return
        if self._random.random() < 0.6:
            self._advise(session, think_ns)
        # Or only as the turn comes, or too late, which matters where history is slow to come.
        if self._random.random() < (0.8 if self._house.is_crowded else 0.2):
            late_ns = max(think_ns + self._random.randrange(-50, 100) * MS, 0)
            self._timeline.after(late_ns, lambda: self._advise(session, 0))
        self._ask_in(think_ns, session)

    def _anew(self, session: Session) -> Session:
        """Another agent of its workflow goes on with the work, in a session of its own."""
        assert session.agent is not None
        agent = self._house.agent_random.choice(list(self._system_of))
        return replace(
            session,
            session_id=SessionId(f"{session.session_id}+"),
            history=list(self._system_of[agent]),
            adapter=None,
            agent=replace(session.agent, agent=agent),
        )

    def _advise(self, session: Session, in_ns: int) -> None:
        frontends = [frontend for frontend in self._frontends if frontend.is_ready]
        if not frontends:
            return
        advisory = Advisory(
            session_id=session.session_id,
            tenant=session.tenant,
            model_id=self._house.model.model_id,
            expected_arrival=self._random.choice([None, in_ns / SECOND]),
            priority=self._random.randrange(3),
            adapter=session.adapter,
            ordered=self._hinters.order(),
        )
        frontend = self._random.choice(frontends)
        if session.tenant == LAST_TENANT:
            self._hinters.announce_around(advisory, frontend)
            return
        frontend.run(frontend.life, lambda: frontend.advise(advisory))

    def _some_adapter(self) -> AdapterRef | None:
        return self._random.choice([None, None, *self._adapters])

    def _some_agent(self) -> AgentRef | None:
        random = self._house.agent_random
        if random.random() < 0.2:
            return None
        return AgentRef(agent=random.choice(AGENTS), workflow_id=random.choice(WORKFLOWS))

    def _tokens(self, length: int) -> list[int]:
        return [self._random.randrange(1, self._house.model.vocab_size) for _ in range(length)]
