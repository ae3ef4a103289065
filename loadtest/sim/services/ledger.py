"""What clients asked for and got, and what must never happen to it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from loadtest.sim.timeline import Timeline
from services.scheduler.core.turns.turn_table import moving_name
from shared.ids import JobId, SessionId, TenantId, TurnId, WorkerId, request_of_job
from shared.wire.messages import AdapterRef, AgentRef, SamplingParams, TurnStart


@dataclass
class Session:
    """A conversation: everything that was said, and how many turns are to come."""

    session_id: SessionId
    tenant: TenantId
    history: list[int]
    turns_left: int
    adapter: AdapterRef | None = None
    agent: AgentRef | None = None


@dataclass
class ClientTurn:
    """A turn as its client sees it.

    Attributes:
        is_streamed: its tokens come as they are generated.
        is_chat: its prompt goes as text.
        moved_at_ns: when it last received something, or could not have.
        calm_since_ns: nothing but deaths went wrong since then.
        end: how it ended: a finish reason, the code of a failure, ``gone``, or ``refused`` before
            it was submitted.
    """

    request_id: str
    session: Session
    prompt: list[int]
    sampling: SamplingParams
    opened_at_ns: int
    moved_at_ns: int
    calm_since_ns: int
    adapter: AdapterRef | None = None
    is_streamed: bool = True
    is_chat: bool = False
    got: list[int] = field(default_factory=list)
    end: str | None = None
    ended_at_ns: int = 0

    @property
    def tenant(self) -> TenantId:
        return self.session.tenant

    @property
    def adapter_hash(self) -> str:
        return "" if self.adapter is None else self.adapter.adapter_hash


class Ledger:
    """Clients write it, and so do processes that start or run something for them.

    Attributes:
        turns: every turn that was ever asked for, by its request.
        submitted: requests whose turns were.
        job_ends: how each request for one-shot jobs ended, each time it did.
        is_calm: nothing goes wrong any more.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.turns: dict[str, ClientTurn] = {}
        self.submitted: set[str] = set()
        self.job_ends: dict[str, list[str]] = {}
        self.is_calm = False
        self._started: set[tuple[TurnId, int]] = set()
        self._turn_of: dict[TurnId, ClientTurn] = {}

    def on_start_turn(self, start: TurnStart, worker_id: WorkerId) -> None:
        """No attempt is given out twice; where nothing goes wrong, no turn that was served. (One
        whose client left may have been under way, one that moves may just have ended.)"""
        name = (start.turn_id, start.attempt)
        assert name not in self._started, f"{name} is started twice"
        self._started.add(name)
        turn = self._turn_of[start.turn_id] = self.turns[start.request_id]
        moves = start.expected_as == moving_name(start.turn_id)
        is_over = turn.end not in (None, "gone") and not moves
        assert not (self.is_calm and is_over), f"{start.request_id} is over, and placed again"
        self._timeline.note(f"{start.request_id}.{start.attempt} -> {worker_id}")

    def turn_of(self, turn_id: TurnId) -> ClientTurn:
        """What the client of a turn that was started asked for."""
        return self._turn_of[turn_id]

    def on_jobs(self, job_ids: Iterable[JobId], what: str) -> None:
        """Where nothing goes wrong, a job that is over is over for the scheduler, too."""
        if self.is_calm:
            over = [job_id for job_id in job_ids if self.job_ends[request_of_job(job_id)]]
            assert not over, f"{over} are over, and {what}"
