"""What web pages from elsewhere make browsers send, on a real socket."""

import asyncio
import json
from pathlib import Path

from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, deployment

JSON = {"Content-Type": "application/json"}
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})


async def status(it: Deployment, headers: dict[str, str]) -> int:
    answer = await it.http.post("/v1/chat/completions", content=CHAT, headers=headers)
    return answer.status_code


async def raw(it: Deployment, request: str) -> bytes:
    """The first line of the answer to a request that no library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(it.url.rpartition(":")[2]))
    writer.write(request.encode())
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line


def test_pages_from_elsewhere_reach_nothing(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, allow_hosts=["chat.box"]) as it:
            assert await status(it, JSON) == 200
            assert await status(it, JSON | {"Origin": it.url}) == 200
            assert await status(it, JSON | {"Host": "chat.box"}) == 200
            assert await status(it, JSON | {"Origin": "https://chat.box"}) == 200
            num_served = len(it.fake.prompts)
            assert await status(it, JSON | {"Host": "evil.example"}) == 421
            assert await status(it, JSON | {"Origin": "http://evil.example"}) == 403
            for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
                assert await status(it, {"Content-Type": kind}) == 415
            assert len(it.fake.prompts) == num_served
            for path in ("/", "/metrics", "/v1/models", "/openapi.json", "/nothing"):
                answer = await it.http.get(path, headers={"Host": "evil.example"})
                assert answer.status_code == 421, path
            answer = await it.http.get("/health", headers={"Host": "evil.example"})
            assert answer.status_code == 200
            assert b" 200 " in await raw(it, "GET /v1/models HTTP/1.0\r\n\r\n")

    asyncio.run(scenario())


def test_with_keys_any_name_will_do(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"key": "k"}]))

    async def scenario() -> None:
        async with deployment(nats_server, redis_server, tmp_path, api_keys_file=keys) as it:
            with_key = JSON | {"Authorization": "Bearer k"}
            assert await status(it, with_key | {"Host": "chat.example.org"}) == 200
            assert await status(it, JSON | {"Host": "chat.example.org"}) == 401
            assert await status(it, with_key | {"Origin": "http://evil.example"}) == 403

    asyncio.run(scenario())
