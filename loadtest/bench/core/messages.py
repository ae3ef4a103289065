"""What it takes to read and to write messages, for `symphony bench core`: on top of what a core
does with them, and beneath what the client library of NATS takes for any message."""

from functools import partial
from typing import Any

from loadtest.bench.core import samples
from loadtest.bench.core.timing import Took
from shared.ids import SessionId, WorkerId
from shared.wire.messages import (
    Advisory,
    AgentRef,
    PlacedTurn,
    TurnArrived,
    TurnEnd,
    TurnRef,
    TurnsEnded,
    TurnsPlaced,
    TurnsStart,
    TurnsSubmit,
    WorkerReport,
    decode,
    encode,
    start_of,
)

EVENTS = 256
SESSION = SessionId("order-17/engineer-abcdef")
WORKER = WorkerId("host-12-w3")


def measure(num_rounds: int) -> dict[str, Any]:
    """Microseconds of reading, and of writing, one of each kind."""
    reading, writing = Took(), Took()
    for _ in range(num_rounds):
        for name, message in _messages().items():
            data = encode(message)
            reading.each(name, partial(decode, type(message)), [data] * EVENTS)
            writing.each(name, encode, [message] * EVENTS)
    return {"decode": reading.us(), "encode": writing.us()}


def _messages() -> dict[str, object]:
    submit = samples.submit("1", SESSION, [samples.host_of(96)])
    turn_id = submit.turn_id
    return {
        "turns_submit": TurnsSubmit(turns=[submit]),
        "turns_start": TurnsStart(turns=[start_of(submit, 4096)]),
        "turn_arrived": TurnArrived(
            session_id=SESSION, turn_id=turn_id, worker_id=WORKER, reserved=True
        ),
        "turns_ended": TurnsEnded(turns=[TurnEnd(turn_id=turn_id, attempt=4096, reason="stop")]),
        "turns_placed": TurnsPlaced(
            shard=1, turns=[PlacedTurn(turn_id=turn_id, worker_id=WORKER, num_tokens=1234)]
        ),
        "report_0": _report(0),
        "report_64": _report(64),
        "advisory": Advisory(
            session_id=SESSION, model_id=samples.MODEL, expected_arrival=2.5,
            frontend_id=samples.FRONTEND, place="10.0.0.1",
        ),
        "turn_arrived_of_agent": TurnArrived(
            session_id=SESSION, turn_id=turn_id, worker_id=WORKER, reserved=True,
            agent=AgentRef(agent="shop/engineer", workflow_id="order-17"),
        ),
        "step_output_1": samples.output([turn_id], 17, 1234),
        "step_output_32": samples.output([turn_id] * 32, 17, 1234),
    }  # fmt: skip


def _report(num_turns: int) -> WorkerReport:
    turns = [
        TurnRef(turn_id=samples.turn_id(str(at), SESSION), attempt=4096, num_generated=100)
        for at in range(num_turns)
    ]
    return samples.report(99, 1234, turns)
