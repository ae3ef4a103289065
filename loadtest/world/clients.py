"""People and agents: sessions of several turns over HTTP, and what each turn must be answered."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from loadtest.sim.http import Exchange, Request
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.services.frontend import Frontend, key_of
from loadtest.sim.services.ledger import ClientTurn, Ledger, Session
from loadtest.sim.services.model import ADAPTERS, BREAKER, KILLER
from loadtest.sim.services.oneshot import JOB_MODEL, SLO_NS, value_of
from loadtest.sim.timeline import MS, SECOND
from loadtest.sim.tokenizer import TOOL
from loadtest.world.hinters import LAST_TENANT, TENANTS, Hint, Hinters
from shared.ids import SessionId, TenantId
from shared.wire.messages import AdapterRef, AgentRef, SamplingParams

RETRY_MAX_NS = SECOND
PATIENT_SLO_NS = 2 * SECOND  # time to run a job again
CALL_TIMEOUT_NS = 5 * SECOND
WORKFLOWS = ("w0", "w1", "w2")  # of every tenant
AGENTS = ("planner", "writer", "reader")
AGENTS_SHARE = 0.5  # of worlds: most sessions are agents'
SEPARATE_SHARE = 0.5  # of those: agents take up every piece of work in a session of its own
CHANGE_SHARE = 0.1  # of turns that go on, on another adapter
CHAT_SHARE = 0.5  # of turns; others are completions of tokens
TOOLS = [{"type": "function", "function": {"name": TOOL}}]
WHOLE_SHARE = 0.15  # of turns: their answers come in one piece
ADDRESS = "10.0.0.1"
REFUSED_STATUS = 400  # and above
# Refusals of turns that were not submitted: the frontend knows no worker yet, or not the adapter.
REFUSALS = {"no_capacity", "session_store_unavailable", "model_not_found"}


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
        self._deployment = deployment
        self._timeline = deployment.timeline
        self._random = deployment.random
        self._frontends = frontends
        self._ledger = ledger
        self._open: dict[str, tuple[ClientTurn, Frontend]] = {}
        self._num_waiting = 0  # sessions whose next turn is still to be asked
        kinds = {"killer": KILLER, "breaker": BREAKER}
        self._poison = [seed for kind, seed in kinds.items() if kind in deployment.fault_kinds]
        self._num_requests = 0
        for _ in range(self._random.randrange(8)):
            self._timeline.after(self._random.randrange(asking_ns), self._ask_jobs)
        # So few that turns share them, or so many that they cannot be there together.
        self._adapters = self._random.sample(ADAPTERS, self._random.choice([0, 1, 3, 6]))
        system = [self._tokens(self._random.randrange(1, 14)) for _ in range(2)]
        has_agents = deployment.agent_random.random() < AGENTS_SHARE
        is_separate = has_agents and deployment.agent_random.random() < SEPARATE_SHARE
        self._system_of: dict[str, list[int]] = {}  # of agents whose sessions have one turn each
        if is_separate:
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
            if session.agent is not None and is_separate:
                session = self._next_agent(session)
            self._ask_in(self._random.randrange(asking_ns), session)

    def check_progress(
        self, *, is_served: bool, is_undisturbed: bool, stall_max_ns: int, calm_stall_max_ns: int
    ) -> None:
        """No open turn stands still while a worker could serve it, and less so while nothing
        goes wrong but that processes die.
        """
        now_ns = self._timeline.now_ns
        for turn, frontend in self._open.values():
            is_connected = is_served and frontend.is_well
            if not is_connected:
                turn.moved_at_ns = now_ns
            if not (
                is_connected and is_undisturbed
            ):  # what was asked meanwhile is given up a while later
                turn.calm_since_ns = now_ns + CALL_TIMEOUT_NS
            if not turn.is_streamed:
                continue
            is_still = now_ns - turn.moved_at_ns > stall_max_ns
            calm_since_ns = max(turn.moved_at_ns, turn.calm_since_ns)
            is_still = is_still or now_ns - calm_since_ns > calm_stall_max_ns
            assert not is_still, f"{turn.request_id} stands still since {turn.moved_at_ns / MS} ms"

    @property
    def are_done(self) -> bool:
        """No request is open any more."""
        return not self._open and not self._num_waiting and all(self._ledger.job_ends.values())

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

    # One-shot jobs.

    def _ask_jobs(self, *, is_patient: bool = False) -> None:
        """A request of some inputs for the one-shot model; few hang up, if they are not patient."""
        frontend = self._some_frontend()
        if frontend is None:
            return
        self._num_requests += 1
        request_id = f"r{self._num_requests}"
        vocab_size = self._deployment.model.vocab_size
        inputs = [
            [self._num_requests % vocab_size, number]
            for number in range(self._random.choice([1, 1, 3]))
        ]
        ends = self._ledger.job_ends[request_id] = []
        slo_ns = self._random.choice([SLO_NS, PATIENT_SLO_NS])
        if is_patient:  # a model that looked slow for a while may turn down a request that is not
            slo_ns = PATIENT_SLO_NS
        body = {"model": JOB_MODEL, "input": inputs, "slo_ms": slo_ns / MS}
        request = _request("/v1/embeddings", body, self._random.choice(TENANTS), request_id)
        exchange = frontend.request(request, JobsReader(inputs, ends))
        if not is_patient and self._random.random() < 0.1:
            delay_ns = self._random.randrange(200 * MS)
            self._timeline.after(delay_ns, partial(_hang_up_jobs, exchange, ends))

    # Turns.

    def _ask_in(self, delay_ns: int, session: Session, *, is_again: bool = False) -> None:
        self._num_waiting += 1
        self._timeline.after(delay_ns, lambda: self._ask(session, is_again=is_again))

    def _ask(self, session: Session, *, is_again: bool = False) -> None:
        """The session's next turn, on all that was said before. What is asked again has no twin:
        while all are refused they would multiply."""
        self._num_waiting -= 1
        random = self._random
        frontend = self._some_frontend()
        if frontend is None:
            self._ask_in(random.randrange(RETRY_MAX_NS) + 1, session)
            return
        if not is_again and self._deployment.has_twin():
            twin = replace(session, history=list(session.history), turns_left=1)
            self._ask_in(0, twin)
        turn = self._new_turn(session)
        self._ledger.turns[turn.request_id] = turn
        self._open[turn.request_id] = (turn, frontend)
        request = self._request_of(turn)
        exchange = frontend.request(request, TurnReader(self, turn, frontend))
        if random.random() < 0.08:
            self._timeline.after(random.randrange(SECOND), lambda: self._hang_up(turn, exchange))

    def _new_turn(self, session: Session) -> ClientTurn:
        model, random, now_ns = self._deployment.model, self._random, self._timeline.now_ns
        session.turns_left -= 1
        if len(session.history) > model.max_model_len * 2 // 3:
            session.history = self._tokens(3)
        prompt = session.history + self._tokens(random.randrange(1, 10))
        sampling = SamplingParams(
            max_tokens=min(random.randrange(1, 12), model.max_model_len - len(prompt)),
            ignore_eos=random.random() < 0.7,
            seed=self._poison.pop() if self._poison and random.random() < 0.5 else 0,
        )
        if random.random() < CHANGE_SHARE:
            session.adapter = self._some_adapter()
        return ClientTurn(
            request_id=f"t{len(self._ledger.turns)}",
            session=session,
            prompt=prompt,
            sampling=sampling,
            opened_at_ns=now_ns,
            moved_at_ns=now_ns,
            calm_since_ns=now_ns,
            adapter=session.adapter,
            is_streamed=random.random() >= WHOLE_SHARE,
            is_chat=random.random() < CHAT_SHARE,
        )

    def _request_of(self, turn: ClientTurn) -> Request:
        session, sampling = turn.session, turn.sampling
        body: dict[str, Any] = {
            "model": self._model_of(session),
            "max_tokens": sampling.max_tokens,
            "ignore_eos": sampling.ignore_eos,
            "seed": sampling.seed,
            "priority": self._random.choice([0, 0, 1, 2]),
            "stream": turn.is_streamed,
            "return_token_ids": True,
        }
        if turn.is_chat:
            content = "".join(f" {token}" for token in turn.prompt)
            body |= {"messages": [{"role": "user", "content": content}], "tools": TOOLS}
        else:
            body["prompt"] = turn.prompt
        if expiry_s := self._deployment.draw_expiry_s():
            body["kv_expiry_s"] = expiry_s
        headers = {"X-Session-Id": str(session.session_id)}
        if (agent := session.agent) is not None:
            headers |= {"X-Agent": agent.agent, "X-Workflow-Id": agent.workflow_id}
        path = "/v1/chat/completions" if turn.is_chat else "/v1/completions"
        return _request(path, body, session.tenant, turn.request_id, headers)

    def _hang_up(self, turn: ClientTurn, exchange: Exchange) -> None:
        if turn.end is None:
            self._end(turn, "gone")
            exchange.hang_up()
            self._go_on(turn.session)

    def on_tokens(self, turn: ClientTurn, tokens: list[int]) -> None:
        """Some were received."""
        assert turn.end is None, f"{turn.request_id} ended as {turn.end}, and goes on"
        model = self._deployment.model
        turn.moved_at_ns = self._timeline.now_ns
        for token in tokens:
            before = turn.prompt + turn.got
            is_over = model.finish(turn.prompt, turn.got, turn.sampling) is not None
            assert not is_over, f"{turn.request_id} goes on after its end"
            assert model.may_follow(before, token, turn.adapter_hash), (
                f"{turn.request_id}: {token} after {before}"
            )
            turn.got.append(token)

    def on_finish(self, turn: ClientTurn, finish: str) -> None:
        """It ended well."""
        model = self._deployment.model
        due = model.finish(turn.prompt, turn.got, turn.sampling)
        assert finish == due, f"{turn.request_id} ended as {finish} after {turn.got}, not as {due}"
        self._end(turn, finish)
        turn.session.history = turn.prompt + turn.got
        self._go_on(turn.session)

    def on_error(self, turn: ClientTurn, frontend: Frontend, status: int, code: str) -> None:
        """It was refused, or failed."""
        self._timeline.note(f"{turn.request_id} fails: {code}")
        if code == "stopping":
            assert frontend.is_stopping, f"{frontend.name} is not stopping"
            self._again(turn, "gone")
        elif turn.request_id not in self._ledger.submitted:
            assert code in REFUSALS, f"{turn.request_id} is refused: {status} {code}"
            self._again(turn, "refused")
        else:
            self._end(turn, code)
            self._go_on(turn.session)

    def on_broken(self, turn: ClientTurn, frontend: Frontend, *, is_refused: bool) -> None:
        """The frontend died, or does not listen: the client asks again, elsewhere if it can."""
        is_due = is_refused or not frontend.is_listening
        assert is_due, f"{frontend.name} breaks {turn.request_id} off"
        self._again(turn, "gone")

    def _again(self, turn: ClientTurn, end: str) -> None:
        self._end(turn, end)
        turn.session.turns_left += 1
        self._ask_in(self._random.randrange(RETRY_MAX_NS), turn.session, is_again=True)

    def _end(self, turn: ClientTurn, how: str) -> None:
        turn.end = how
        turn.ended_at_ns = self._timeline.now_ns
        del self._open[turn.request_id]

    def _go_on(self, session: Session) -> None:
        """Think, perhaps be seen typing, and ask again."""
        if not session.turns_left:
            return
        is_crowded = self._deployment.is_crowded
        think_ns = self._random.randrange(2 * SECOND) // (8 if is_crowded else 1)
        if self._system_of and session.agent is not None:
            self._ask_in(think_ns, self._next_agent(session))
            return
        if self._random.random() < 0.6:
            self._advise(session, think_ns)
        # Or only as the turn comes, or too late, which matters where history is slow to come.
        if self._random.random() < (0.8 if is_crowded else 0.2):
            late_ns = max(think_ns + self._random.randrange(-50, 100) * MS, 0)
            self._timeline.after(late_ns, lambda: self._advise(session, 0))
        self._ask_in(think_ns, session)

    def _next_agent(self, session: Session) -> Session:
        """Another agent of its workflow goes on with the work, in a session of its own."""
        assert session.agent is not None
        agent = self._deployment.agent_random.choice(list(self._system_of))
        return replace(
            session,
            session_id=SessionId(f"{session.session_id}+"),
            history=list(self._system_of[agent]),
            adapter=None,
            agent=replace(session.agent, agent=agent),
        )

    def _advise(self, session: Session, in_ns: int) -> None:
        frontend = self._some_frontend()
        if frontend is None:
            return
        hint = Hint(
            session_id=session.session_id,
            tenant=session.tenant,
            model=self._model_of(session),
            expected_arrival=self._random.choice([None, in_ns / SECOND]),
            priority=self._random.randrange(3),
            is_ordered=self._hinters.order(),
        )
        if session.tenant == LAST_TENANT:
            self._hinters.announce_around(hint, frontend)
        else:
            self._hinters.send(hint, frontend)

    def _model_of(self, session: Session) -> str:
        """What its requests name as their model."""
        if session.adapter is not None:
            return session.adapter.name
        return self._deployment.model.model_id

    def _some_frontend(self) -> Frontend | None:
        listening = [frontend for frontend in self._frontends if frontend.is_listening]
        return self._random.choice(listening) if listening else None

    def _some_adapter(self) -> AdapterRef | None:
        return self._random.choice([None, None, *self._adapters])

    def _some_agent(self) -> AgentRef | None:
        random = self._deployment.agent_random
        if random.random() < 0.2:
            return None
        return AgentRef(agent=random.choice(AGENTS), workflow_id=random.choice(WORKFLOWS))

    def _tokens(self, length: int) -> list[int]:
        return [self._random.randrange(1, self._deployment.model.vocab_size) for _ in range(length)]


class TurnReader:
    """Reads the answer to a turn: server-sent events, or JSON."""

    def __init__(self, clients: Clients, turn: ClientTurn, frontend: Frontend) -> None:
        self._clients = clients
        self._turn = turn
        self._frontend = frontend
        self._status = 0
        self._data = b""
        self._is_done = False

    def on_status(self, status: int) -> None:
        self._status = status

    def on_data(self, data: bytes) -> None:
        self._data += data
        if self._status >= REFUSED_STATUS or not self._turn.is_streamed:
            return
        *events, self._data = self._data.split(b"\n\n")
        for event in events:
            self._on_event(event.removeprefix(b"data: "))

    def on_end(self) -> None:
        if self._status >= REFUSED_STATUS:
            self._on_error(json.loads(self._data)["error"])
        elif not self._turn.is_streamed:
            answer = json.loads(self._data)
            (choice,) = answer["choices"]
            self._on_prompt(answer | choice)
            self._on_choice(choice)
        assert self._turn.end is not None, f"{self._turn.request_id} has no end"

    def on_broken(self, *, is_refused: bool) -> None:
        if self._turn.end is None:
            self._clients.on_broken(self._turn, self._frontend, is_refused=is_refused)

    def _on_event(self, data: bytes) -> None:
        assert not self._is_done, "an event after the last one"
        if data == b"[DONE]":
            self._is_done = True
            return
        event = json.loads(data)
        if "error" in event:
            self._is_done = True
            self._on_error(event["error"])
            return
        for choice in event["choices"]:
            self._on_prompt(event | choice)
            self._on_choice(choice)

    def _on_prompt(self, answer: dict[str, Any]) -> None:
        """Once it is shown, as it was tokenized."""
        shown = answer.get("prompt_token_ids", self._turn.prompt)
        assert shown == self._turn.prompt, f"the prompt became {shown}"

    def _on_choice(self, choice: dict[str, Any]) -> None:
        self._clients.on_tokens(self._turn, choice.get("token_ids", []))
        if (finish := choice["finish_reason"]) is not None:
            self._clients.on_finish(self._turn, "stop" if finish == "tool_calls" else finish)

    def _on_error(self, error: dict[str, Any]) -> None:
        if self._turn.end is None:
            self._clients.on_error(self._turn, self._frontend, self._status, error["code"])


class JobsReader:
    """Reads the answer to a request for one-shot jobs.

    Args:
        ends: how it ended is added there.
    """

    def __init__(self, inputs: list[list[int]], ends: list[str]) -> None:
        self._inputs = inputs
        self._ends = ends
        self._status = 0
        self._data = b""

    def on_status(self, status: int) -> None:
        self._status = status

    def on_data(self, data: bytes) -> None:
        self._data += data

    def on_end(self) -> None:
        answer = json.loads(self._data)
        if self._status >= REFUSED_STATUS:
            assert self._status != 500, f"jobs failed: {answer}"
            self._ends.append(answer["error"]["code"])
            return
        values = [entry["embedding"] for entry in answer["data"]]
        assert values == [[value_of(each)] for each in self._inputs], "wrong values"
        self._ends.append("done")

    def on_broken(self, *, is_refused: bool) -> None:
        self._ends.append("refused" if is_refused else "gone")


def _hang_up_jobs(exchange: Exchange, ends: list[str]) -> None:
    if not ends:
        ends.append("gone")
        exchange.hang_up()


def _request(
    path: str,
    body: dict[str, Any],
    tenant: TenantId,
    request_id: str,
    headers: dict[str, str] | None = None,
) -> Request:
    own = {"Authorization": f"Bearer {key_of(tenant)}", "X-Request-Id": request_id}
    data = json.dumps(body).encode()
    return Request(path=path, body=data, address=ADDRESS, headers=own | (headers or {}))
