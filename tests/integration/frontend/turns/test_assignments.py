"""A turn whose place is known goes to its worker at once, with its prompt, and the scheduler hears
of it.
"""

import asyncio
from pathlib import Path

from shared.ids import ModelId, SessionId, WorkerId
from shared.wire import messages as m
from shared.wire.subjects import SESSION_PLACED, WORKER_START
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, deployment
from tests.integration.harness import eventually


def test_an_expected_turn_goes_to_its_worker_at_once(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path) as h:
            starts: list[m.TurnStart] = []
            await h.bus.subscribe(WORKER_START, lambda message: starts.extend(message.turns), "w7")
            for worker_id in ("not a subject", "w7"):
                place = m.SessionPlaced(
                    session_id=SessionId(f"for {worker_id}"),
                    model_id=ModelId(MODEL),
                    worker_id=WorkerId(worker_id),
                )
                await h.bus.publish(SESSION_PLACED, place)
            await h.bus.flush()
            for worker_id in ("not a subject", "w7", "w7"):
                body = {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": "Hello?"}],
                    "session_id": f"for {worker_id}",
                }
                reply = await h.http.post("/v1/chat/completions", json=body)
                assert reply.status_code == 200
            await eventually(lambda: bool(starts))
            (start,) = starts
            sent = [submit for submit in h.fake.submits if submit.turn_id == start.turn_id]
            assert [submit.sent_to for submit in h.fake.submits] == ["not a subject", "w7", None]
            assert [submit.prompt for submit in sent] == [""]
            prompt = m.decode(m.Prompt, start.prompt.encode())
            pulled = next(p for p in h.fake.prompts if p.turn_id == start.turn_id)
            assert (start.attempt, prompt.tokens) == (1, pulled.tokens)

    asyncio.run(scenario())
