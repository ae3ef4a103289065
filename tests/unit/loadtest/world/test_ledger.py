"""What the ledger lets nobody do: start an attempt twice, or what is over while all is calm."""

import pytest

from loadtest.sim.services.ledger import ClientTurn, Ledger, Session
from loadtest.sim.timeline import Timeline
from shared.ids import FrontendId, JobId, ModelId, SessionId, TenantId, TurnId, WorkerId
from shared.wire.messages import SamplingParams, TurnStart

WORKER = WorkerId("w")
JOBS = [JobId("job-1:r1-0"), JobId("job-2:r2-0")]


def start(attempt: int) -> TurnStart:
    return TurnStart(
        turn_id=TurnId("t0"), frontend_id=FrontendId("f"), model_id=ModelId("m"),
        num_prompt_tokens=1, attempt=attempt, request_id="t0",
    )  # fmt: skip


@pytest.fixture
def ledger() -> Ledger:
    """One turn was asked for, and two requests for jobs, of which the first is over."""
    ledger = Ledger(Timeline())
    session = Session(SessionId("s"), TenantId("a"), [], 0)
    sampling = SamplingParams(max_tokens=1)
    ledger.turns["t0"] = ClientTurn("t0", session, [1], sampling, 0, 0, 0)
    ledger.job_ends = {"r1": ["done"], "r2": []}
    return ledger


def test_an_attempt_starts_once(ledger: Ledger) -> None:
    ledger.on_start_turn(start(1), WORKER)
    ledger.on_start_turn(start(2), WORKER)
    with pytest.raises(AssertionError, match="started twice"):
        ledger.on_start_turn(start(1), WORKER)


@pytest.mark.parametrize("end", [None, "gone", "stop", "no_worker"])
@pytest.mark.parametrize("is_calm", [False, True])
def test_a_turn_that_was_served_is_placed_again_only_in_trouble(
    ledger: Ledger, end: str | None, is_calm: bool
) -> None:
    ledger.turns["t0"].end = end
    ledger.is_calm = is_calm
    if is_calm and end in ("stop", "no_worker"):
        with pytest.raises(AssertionError, match="placed again"):
            ledger.on_start_turn(start(1), WORKER)
    else:
        ledger.on_start_turn(start(1), WORKER)


def test_nobody_starts_what_nobody_asked_for(ledger: Ledger) -> None:
    del ledger.turns["t0"]
    with pytest.raises(KeyError):
        ledger.on_start_turn(start(1), WORKER)


def test_a_job_that_is_over_runs_again_only_in_trouble(ledger: Ledger) -> None:
    ledger.on_jobs(JOBS, "run again")
    ledger.is_calm = True
    ledger.on_jobs(JOBS[1:], "run again")
    with pytest.raises(AssertionError, match=r"r1-0.* are over, and run again"):
        ledger.on_jobs(JOBS, "run again")
