"""How people get at a cluster, whatever it is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from loadtest.cluster.measured import FRONTEND_TURN_NS
from loadtest.cluster.shells.frontend import Frontend
from loadtest.sim.services.deployment import SimDeployment
from loadtest.sim.timeline import SECOND
from services.frontend.core.turns.turns import Deliver, Fail, NewTurn
from shared.ids import SessionId, TenantId, TurnId
from shared.wire.messages import Advisory, AgentRef, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A turn."""

    turn_id: TurnId
    session_id: SessionId
    tenant: TenantId
    prompt: list[int]
    num_output: int
    priority: int = 0
    agent: AgentRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """An advisory.

    Attributes:
        expected_in_ns: None: it is not said.
        place: who says it.
    """

    session_id: SessionId
    tenant: TenantId
    expected_in_ns: int | None
    priority: int
    agent: AgentRef | None
    place: str


class Door(Protocol):
    """What people see of a cluster."""

    @property
    def now_ns(self) -> int:
        """A clock of any beginning."""

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do it in `delay_ns`."""

    def ask(
        self,
        ask: Ask,
        on_tokens: Callable[[list[int]], None],
        on_end: Callable[[bool], None],
    ) -> None:
        """Begin a turn; its tokens are reported as they come, and whether it ended well."""

    def announce(self, announce: Announce) -> None:
        """Send an advisory, whatever becomes of it."""


class SimulatedDoor:
    """A frontend in virtual time."""

    def __init__(self, deployment: SimDeployment, frontend: Frontend) -> None:
        self._deployment = deployment
        self._frontend = frontend

    @property
    def now_ns(self) -> int:
        return self._deployment.timeline.now_ns

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self._deployment.timeline.after(delay_ns, action)

    def ask(
        self,
        ask: Ask,
        on_tokens: Callable[[list[int]], None],
        on_end: Callable[[bool], None],
    ) -> None:
        def on_news(news: Deliver | Fail) -> None:
            if isinstance(news, Fail):
                on_end(False)
                return
            if news.tokens:
                on_tokens(news.tokens)
            if news.finish is not None:
                on_end(True)

        new = NewTurn(
            turn_id=ask.turn_id,
            model_id=self._deployment.model.model_id,
            prompt=ask.prompt,
            sampling=SamplingParams(max_tokens=ask.num_output, ignore_eos=True),
            tenant=ask.tenant,
            session_id=ask.session_id,
            priority=ask.priority,
            agent=ask.agent,
        )
        self.after(FRONTEND_TURN_NS, partial(self._frontend.open, new, on_news))

    def announce(self, announce: Announce) -> None:
        expected_ns, agent = announce.expected_in_ns, announce.agent
        self._frontend.advise(
            Advisory(
                session_id=announce.session_id,
                tenant=announce.tenant,
                model_id=self._deployment.model.model_id,
                expected_arrival=None if expected_ns is None else expected_ns / SECOND,
                priority=announce.priority,
                agent=agent.agent if agent is not None else "",
                workflow_id=agent.workflow_id if agent is not None else "",
                place=announce.place,
            )
        )
