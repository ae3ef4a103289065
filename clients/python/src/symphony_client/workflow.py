"""Workflows and the agents in them: what is known of the turns to come, said as it becomes known.

A deployment learns by itself which agent follows which, and how long tools take that its model
calls (docs/agents.md). What is said here is what it cannot know: which successor it is this time,
in which session, from the first workflow on; that a tool runs, for how long tools like it took in
this process, and when the last of several is done; and that a turn will not come.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Self

from symphony_client.core.names import plain
from symphony_client.errors import InvalidRequest
from symphony_client.foresight import TOO_SOON_S, Foresight
from symphony_client.messages import Advisory

RESERVED = ("tool:", "#")  # of the deployment's own names
AWAITED_MAX = 4096  # sessions of a workflow; of more the oldest are left to expire


class Workflow:
    """One run of an application. As a context manager it takes back, when it is left, what was
    announced and has not come: nothing of it follows any more.

    Args:
        application: put before agents' names: those of different applications never follow each
            other.
        model: which its turns ask, unless an agent says otherwise; None: the session's last.
        priority: of its advisories; None: the deployment's own.
    """

    def __init__(
        self,
        workflow_id: str,
        foresight: Foresight,
        *,
        application: str | None = None,
        model: str | None = None,
        priority: int | None = None,
    ) -> None:
        self.workflow_id = plain(workflow_id)
        self.application = application
        self.model = model
        self.priority = priority
        self.foresight = foresight
        self._awaited: OrderedDict[str, None] = OrderedDict()  # sessions
        self._lock = threading.Lock()

    def agent(
        self,
        name: str,
        session_id: str | None = None,
        next: str | Iterable[str] | None = None,
        *,
        model: str | None = None,
    ) -> "Agent":
        """An agent's place in this workflow, to be entered when it is at work.

        Args:
            session_id: whose history it goes on; None: one of its own in this workflow.
            next: who follows it, if that is known: announced when it is entered, for when agents
                like it were done. Its own name: a user writes again, and its next turn is announced
                when it is left.

        Raises:
            InvalidRequest: it is called as the deployment calls tools and places.
        """
        if name.startswith(RESERVED):
            raise InvalidRequest(f"agent {name!r}: may not begin with {' or '.join(RESERVED)}")
        following = (next,) if isinstance(next, str) else tuple(next or ())
        return Agent(self, name, session_id or self.session_of(name), following, model)

    def session_of(self, name: str) -> str:
        """The session in which an agent is, unless it is said otherwise."""
        return plain(f"{self.workflow_id}/{name}")

    def full_name(self, name: str) -> str:
        """As the deployment knows the agent."""
        return plain(f"{self.application}/{name}" if self.application else name)

    def expect(
        self,
        name: str,
        session_id: str | None = None,
        *,
        expected_arrival: float | None = None,
        model: str | None = None,
    ) -> str:
        """An agent's turn is coming, in so many seconds if that is known; its session."""
        session_id = session_id or self.session_of(name)
        with self._lock:
            self._awaited[session_id] = None
            self._awaited.move_to_end(session_id)
            if len(self._awaited) > AWAITED_MAX:
                self._awaited.popitem(last=False)
        self.foresight.expect(
            Advisory(
                session_id=session_id,
                model=model or self.model,
                expected_arrival=expected_arrival,
                agent=self.full_name(name),
                workflow_id=self.workflow_id,
                priority=self.priority,
            )
        )
        return session_id

    def end(self) -> None:
        """Nothing follows any more."""
        with self._lock:
            awaited = list(self._awaited)
            self._awaited.clear()
        for session_id in awaited:
            self.foresight.give_up(session_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Agent:
    """An agent at work; made by `Workflow.agent`. Nothing here waits for anything, so that a plain
    `with` is right in asyncio too. It is at work once at a time: for several make several.

    Attributes:
        name: in this workflow.
        session_id: whose history it goes on.
    """

    def __init__(
        self,
        workflow: Workflow,
        name: str,
        session_id: str,
        following: tuple[str, ...],
        model: str | None,
    ) -> None:
        self.workflow = workflow
        self.name = name
        self.session_id = session_id
        self._following = following
        self._model = model
        self._foresight = workflow.foresight
        self._tools = self._foresight.tools()
        self._call_ids = count()
        self._entered_at_s: float | None = None
        self._announced: deque[str] = deque(maxlen=AWAITED_MAX)  # others' sessions, by this one

    @property
    def identity(self) -> dict[str, str]:
        """What each request says, for settings that are made once for many requests."""
        return {
            "agent": self.workflow.full_name(self.name),
            "workflow_id": self.workflow.workflow_id,
            "session_id": self.session_id,
        }

    @property
    def extra_body(self) -> dict[str, str]:
        """For any OpenAI client's ``extra_body``. Read it again for each request: reading it says
        that the turn begins (`turn_begins`).
        """
        self.turn_begins()
        return self.identity

    @property
    def headers(self) -> dict[str, str]:
        """The same as headers, for clients without ``extra_body``."""
        self.turn_begins()
        names = self.identity
        return {
            "X-Agent": names["agent"],
            "X-Workflow-Id": names["workflow_id"],
            "X-Session-Id": names["session_id"],
        }

    def enter(self) -> None:
        """It is at work: its turn comes, unless it is asked at once, and so do those that follow
        it.
        """
        self._entered_at_s = self._foresight.clock()
        self._expect(0.0)
        lasts_s = (
            self._foresight.expected_s(self._key("agent", self.name)) if self._following else 0
        )
        for name in self._following:
            if name != self.name:
                self.hands_off_to(name, lasts_s)

    def leave(self, *, has_failed: bool = False) -> None:
        """It is done. What was announced of its own turn and did not come is taken back, and its
        next is announced if it follows itself; if it has failed, so is what it announced of others.
        """
        self._tools.clear()
        self._foresight.give_up(self.session_id)
        if has_failed:
            for session_id in list(self._announced):
                self._foresight.give_up(session_id)
        elif self._entered_at_s is not None:
            lasted_s = self._foresight.clock() - self._entered_at_s
            self._foresight.lasted(self._key("agent", self.name), lasted_s)
            if self.name in self._following:
                self._expect(None)
        self._announced.clear()
        self._entered_at_s = None

    def turn_begins(self) -> None:
        """A request of this agent is about to be sent: a hint of it that still waits is dropped,
        since it would announce the turn after.
        """
        self._foresight.turn_begins(self.session_id)

    def hands_off_to(
        self, name: str, expected_arrival: float | None = None, *, session_id: str | None = None
    ) -> None:
        """Another agent goes on, in so many seconds if that is known."""
        announced = self.workflow.expect(name, session_id, expected_arrival=expected_arrival)
        self._announced.append(announced)

    @contextmanager
    def tool(self, name: str) -> Iterator[None]:
        """A tool runs. How long is learned, unless it is cancelled."""
        call_id = f"{name}#{next(self._call_ids)}"
        self.tool_started(name, call_id)
        try:
            yield
        except Exception:
            self.tool_ended(name, call_id)
            raise
        except BaseException:
            self.tool_ended(name, call_id, is_cancelled=True)
            raise
        self.tool_ended(name, call_id)

    def tool_started(self, name: str, call_id: str | None = None) -> None:
        """A tool runs: the agent's turn comes when it is done, and those that run beside it.

        Args:
            call_id: distinguishes calls that run side by side; None: there is one of this name.
        """
        left_s = self._tools.start(self._key("tool", name), call_id or name)
        if left_s is None or left_s >= TOO_SOON_S:
            self._expect(left_s)

    def tool_ended(
        self, name: str, call_id: str | None = None, *, is_cancelled: bool = False
    ) -> None:
        """It is done, with an error or without. If it was the last, the turn comes now, which is
        said if something else was said before.
        """
        num_left, left_s = self._tools.end(call_id or name, is_learned=not is_cancelled)
        if is_cancelled or not self._foresight.is_awaited(self.session_id):
            return
        self._expect(left_s if num_left else 0.0)

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.leave(has_failed=error is not None)

    def _expect(self, expected_arrival: float | None) -> None:
        self.workflow.expect(
            self.name, self.session_id, expected_arrival=expected_arrival, model=self._model
        )

    def _key(self, kind: str, name: str) -> str:
        """By which durations are learned: an application's own."""
        return f"{self.workflow.application or ''}/{kind}:{name}"
