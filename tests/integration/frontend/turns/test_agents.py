"""Whose turn it is goes with the turn, and that it is over is told."""

import asyncio
from pathlib import Path

import pytest

from shared.blocks import chain_keys, pack_keys, root_key
from shared.ids import DEFAULT_TENANT, SessionId
from shared.wire import messages as m
from shared.wire.tracker_shards import left_wire
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, deployment
from tests.integration.harness import eventually

WRITER = m.AgentRef(agent="writer", workflow_id="w")


@pytest.mark.parametrize("num_shards", [1, 2])
def test_an_agent_s_turn_is_told_from_its_beginning_to_its_end(
    nats_server: Server, redis_server: Server, tmp_path: Path, num_shards: int
) -> None:
    wire, ids = left_wire(m.AgentTurnLeft(agent=WRITER, session_id=SessionId("s")), num_shards)

    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, tracker_shards=num_shards) as h:
            left: list[m.AgentTurnLeft] = []
            await h.bus.subscribe(wire, left.append, *ids)
            await h.bus.flush()

            async def ask(
                headers: dict[str, str] | None = None, *, text: str = "Hi", **fields: str
            ) -> int:
                body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
                path = "/v1/chat/completions"
                return (await h.http.post(path, json=body, headers=headers)).status_code

            assert await ask(agent="writer", workflow_id="w", session_id="s") == 200
            named = {"X-Agent": "writer", "X-Workflow-Id": "w", "X-Session-Id": "t"}
            assert await ask(named) == 200
            assert await ask(agent="writer", workflow_id="w") == 200
            assert await ask(session_id="u") == 200
            assert [submit.agent for submit in h.fake.submits] == [WRITER, WRITER, None, None]
            await eventually(lambda: len(left) == 2)
            assert [(each.agent, each.session_id) for each in left] == [
                (WRITER, "s"),
                (WRITER, "t"),
            ]
            assert {(each.model_id, each.keys) for each in left} == {(MODEL, "")}, "no full block"
            named = {"X-Agent": "writer", "X-Workflow-Id": "w", "X-Session-Id": "v"}
            assert await ask(named, text="Hi " * 99) == 200
            await eventually(lambda: len(left) == 3)
            tokens = m.unpack_ints(h.fake.prompts[-1].tokens)
            root = root_key(h.fake.card().fingerprint, DEFAULT_TENANT)
            keys = chain_keys(root, tokens, h.fake.card().block_tokens)
            assert keys and left[2].keys == pack_keys(keys)
            assert await ask(agent="writer", session_id="s") == 400
            assert await ask(agent="tool:x", workflow_id="w", session_id="s") == 400
            assert await ask(named | {"X-Agent": "a" * 257}) == 400

    asyncio.run(scenario())
