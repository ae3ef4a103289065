"""Adapters as clients name, add and remove them, over real NATS, Redis and a kvstore."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from services.frontend.adapters.upload_files import UnnamedFile
from services.kvstore.config import KvstoreConfig
from services.kvstore.service import main as kvstore_main
from shared.blocks import BLOCK_TOKENS, chain_keys, child_key, root_key, unpack_keys
from shared.errors import SymphonyError
from shared.ids import HostId, ModelId, SessionId, TenantId, tenant_token
from shared.wire import messages as m
from shared.wire.sessions import decode_record, session_redis_key
from shared.wire.subjects import (
    ADAPTER_LOAD,
    ADAPTER_UNLOAD,
    ADVISORY_SUBMIT,
    TENANT_ADAPTER_GET,
    TENANT_ADAPTER_LIST,
    TENANT_ADAPTER_LOAD,
    TENANT_ADAPTER_UNLOAD,
    TENANT_ADVISORY_SUBMIT,
)
from tests.adapters import CARD, write_adapter
from tests.conftest import Server
from tests.integration.frontend.deployment import MODEL, Deployment, Reply, deployment
from tests.integration.harness import eventually, eventually_answers, running

HI = [{"role": "user", "content": "hi"}]
KEYS = [
    {"key": "admin", "tenant": "ops", "scopes": ["admin"]},
    {"key": "acme", "tenant": "acme", "scopes": ["inference", "adapters"]},
    {"key": "other", "tenant": "other", "scopes": ["inference", "adapters"]},
    {"key": "user", "tenant": "acme", "scopes": ["inference"]},
]


@dataclass
class Place:
    """A deployment with a kvstore, and folders of adapters."""

    it: Deployment
    tmp_path: Path
    redis: Server

    def folder(self, seed: int) -> str:
        return str(write_adapter(self.tmp_path / "adapters" / f"a{seed}", seed))

    async def ask(self, method: str, path: str, key: str = "", **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return await self.it.http.request(method, path, headers=headers, **more)

    async def load(self, name: str, seed: int, key: str = "", **fields: Any) -> httpx.Response:
        body = {"lora_name": name, "lora_path": self.folder(seed)} | fields
        return await self.ask("POST", "/v1/load_lora_adapter", key, json=body)

    async def unload(self, name: str, key: str = "", **fields: Any) -> httpx.Response:
        body = {"lora_name": name} | fields
        return await self.ask("POST", "/v1/unload_lora_adapter", key, json=body)

    async def chat(self, model: str, key: str = "", **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": HI} | fields
        return await self.ask("POST", "/v1/chat/completions", key, json=body)

    async def ran_on(self, model: str, key: str = "", **fields: Any) -> m.AdapterRef | None:
        """The adapter of the turn that such a chat becomes."""
        answer = await self.chat(model, key, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        submit = self.it.fake.submits[-1]
        assert submit.model_id == MODEL
        return submit.adapter

    def stored(self) -> set[str]:
        root = self.tmp_path / "kv" / "adapters"
        return {path.name for path in root.iterdir()} - {"names"}


@asynccontextmanager
async def place(
    nats: Server, redis: Server, tmp_path: Path, *, keys: bool = False, **settings: Any
) -> AsyncIterator[Place]:
    (tmp_path / "adapters").mkdir(exist_ok=True)
    kv = KvstoreConfig(
        nats_url=nats.url, redis_url=redis.url, host_id=HostId("h1"),
        data_dir=tmp_path / "kv", arena_dir=tmp_path / "arena", arena_bytes=1 << 20,
        disk_bytes_max=1 << 24, adapter_dirs=[tmp_path / "adapters"],
    )  # fmt: skip
    if keys:
        (tmp_path / "keys.json").write_text(json.dumps(KEYS))
        settings |= {"api_keys_file": tmp_path / "keys.json"}
    settings.setdefault("data_dir", tmp_path / "fe")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(kvstore_main, kv, "kvstore"))
        settings.setdefault("reply", lambda _: Reply())
        it = await stack.enter_async_context(
            deployment(nats, redis, tmp_path, lora=CARD, host_id=HostId("h1"), **settings)
        )
        yield Place(it, tmp_path, redis)


def error(answer: httpx.Response) -> tuple[int, str, str | None]:
    said = answer.json()["error"]
    return answer.status_code, said["code"], said["param"]


def test_the_plain_path(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with place(nats_server, redis_server, tmp_path) as it:
            answer = await it.load("fox", 1)
            assert answer.status_code == 200, answer.text
            assert answer.text == "Success: LoRA adapter 'fox' added successfully."
            ref = await it.ran_on("fox")
            assert ref is not None and ref.name == "fox" and ref.lora_rank == 4
            assert ref.ranks == {"self_attn.q_proj": 4, "mlp.up_proj": 4} and ref.image_bytes
            assert await it.ran_on(f"{MODEL}:fox") == ref
            assert await it.ran_on(MODEL, adapter_id="fox") == ref
            assert await it.ran_on(MODEL) is None
            told = await it.ask("POST", "/v1/completions", json={"model": "fox", "prompt": "x"})
            assert told.json()["model"] == "fox" and it.it.fake.submits[-1].adapter == ref
            models = {
                each["id"]: each for each in (await it.ask("GET", "/v1/models")).json()["data"]
            }
            assert models["fox"]["parent"] == MODEL and models[MODEL]["parent"] is None
            assert models["fox"]["root"] == it.folder(1)
            one = (await it.ask("GET", "/v1/models/fox")).json()
            assert one == models["fox"]
            tokens = await it.ask("POST", "/tokenize", json={"model": "fox", "prompt": "x"})
            assert tokens.status_code == 200

            answer = await it.load("fox", 2)
            assert error(answer) == (400, "adapter_exists", "lora_name")
            assert (await it.load("fox", 2, load_inplace=True)).status_code == 200
            newer = await it.ran_on("fox")
            assert newer is not None and newer.adapter_hash != ref.adapter_hash

            answer = await it.unload("fox")
            assert answer.text == "Success: LoRA adapter 'fox' removed successfully."
            assert error(await it.chat("fox")) == (404, "model_not_found", "model")
            assert error(await it.unload("fox")) == (404, "model_not_found", "lora_name")
            answer = await it.ask(
                "POST", "/load_lora_adapter",
                json={"lora_name": "fox", "lora_path": it.folder(1), "base_model_name": MODEL},
            )  # fmt: skip
            assert answer.status_code == 200
            assert await it.ran_on("fox") == ref

    asyncio.run(scenario())


def test_a_turn_keeps_the_weights_it_began_with(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    hold = asyncio.Event()

    async def scenario() -> None:
        settings: dict[str, Any] = {"resubmit_silent_s": 0.3, "resubmit_unpulled_s": 0.3}
        held = Reply(hold=hold, hold_at=1)
        async with place(
            nats_server, redis_server, tmp_path, reply=lambda _: held, **settings
        ) as it:
            await it.load("fox", 1)
            asking = asyncio.create_task(it.chat("fox"))
            await eventually(lambda: len(it.it.fake.submits) == 1)
            first = it.it.fake.submits[0].adapter
            await it.load("fox", 2, load_inplace=True)
            await eventually(lambda: len(it.it.fake.submits) > 2)  # submitted again
            assert all(submit.adapter == first for submit in it.it.fake.submits)
            await it.unload("fox")
            hold.set()
            assert (await asking).status_code == 200
            assert first is not None and first.adapter_hash in it.stored()

    asyncio.run(scenario())


def test_sessions_keep_tokens_and_not_blocks_when_the_weights_change(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(
            nats_server, redis_server, tmp_path, reply=lambda _: Reply("y" * 110)
        ) as it:
            await it.load("fox", 1)
            redis: Any = Redis.from_url(redis_server.url)

            async def keys_after(model: str, messages: list[dict[str, str]]) -> tuple[Any, Any]:
                answer = await it.chat(model, session_id="s", messages=messages)
                reply = answer.json()["choices"][0]["message"]
                messages += [reply, {"role": "user", "content": "more"}]
                key = session_redis_key(TenantId("default"), SessionId("s"))
                record = decode_record(await redis.get(key))
                ref = it.it.fake.submits[-1].adapter
                adapter_hash = "" if ref is None else ref.adapter_hash
                assert record.adapter_hash == adapter_hash
                root = root_key("f1", TenantId("default"), adapter_hash)
                tokens = m.unpack_ints(record.tokens)
                computed = tokens[: record.num_computed]
                *full, tail = unpack_keys(record.block_keys)
                assert full == chain_keys(root, computed)
                assert tail == child_key(full[-1], computed[len(full) * BLOCK_TOKENS :])
                return record, tokens

            def num_history() -> int:
                return it.it.fake.prompts[-1].num_history

            messages = [{"role": "user", "content": "hello"}]
            _, first = await keys_after("fox", messages)
            assert num_history() == 0
            record, second = await keys_after(MODEL, messages)
            assert second[: len(first)] == first and num_history() == 0, "others' KV is of no use"
            await keys_after(MODEL, messages)
            assert num_history() == record.num_computed == len(second)
            await it.load("fox", 2, load_inplace=True)
            await keys_after("fox", messages)
            assert num_history() == 0
            await redis.aclose()

    asyncio.run(scenario())


def test_tenants_see_their_own_and_what_is_everybodys(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(nats_server, redis_server, tmp_path, keys=True) as it:
            assert (await it.load("mine", 1, "acme")).status_code == 200
            mine = await it.ran_on("mine", "acme")
            assert await it.ran_on("mine", "user") == mine
            foreign, unknown = await it.chat("mine", "other"), await it.chat("none", "other")
            assert foreign.status_code == 404
            assert foreign.text.replace("mine", "none") == unknown.text
            foreign, unknown = await it.unload("mine", "other"), await it.unload("none", "other")
            assert foreign.text.replace("mine", "none") == unknown.text
            assert foreign.status_code == 404
            # scopes
            for answer in (
                await it.load("x", 1, "user"),
                await it.unload("mine", "user"),
                await it.ask("DELETE", "/v1/adapters/mine", "user"),
                await it.ask("PUT", "/v1/adapters/mine", "user"),
                await it.load("x", 1, "acme", shared=True),
                await it.load("x", 1, "acme", tenant="other"),
                await it.ask("GET", "/v1/adapters?tenant=other", "acme"),
                await it.unload("mine", "other", tenant="acme"),
            ):
                assert error(answer)[:2] == (403, "insufficient_scope")
            assert (await it.load("x", 1)).status_code == 401
            # everybody's
            assert (await it.load("all", 2, "admin", shared=True)).status_code == 200
            everybodys = await it.ran_on("all", "acme")
            assert everybodys == await it.ran_on("all", "other") is not None
            assert (await it.load("all", 3, "acme")).status_code == 200
            assert (await it.ran_on("all", "acme")) != everybodys
            assert (await it.ran_on("all", "other")) == everybodys
            names = [
                [each["id"] for each in (await it.ask("GET", path, key)).json()["data"]]
                for path in ("/v1/models", "/v1/adapters") for key in ("acme", "other")
            ]  # fmt: skip
            assert names == [[MODEL, "all", "mine"], [MODEL, "all"], ["all", "mine"], ["all"]]
            assert error(await it.unload("all", "other"))[0] == 404
            assert (await it.unload("all", "acme")).status_code == 200
            await eventually_answers(lambda: it.ran_on("all", "acme"), lambda r: r == everybodys)
            assert (await it.unload("all", "admin")).status_code == 200
            assert error(await it.chat("all", "acme"))[0] == 404
            # for others
            assert (await it.load("gift", 3, "admin", tenant="other")).status_code == 200
            assert await it.ran_on("gift", "other") is not None
            shown = await it.ask("GET", "/v1/adapters/gift?tenant=other", "admin")
            assert shown.json()["tenant"] == "other"

    asyncio.run(scenario())


def test_a_tenant_changes_adapters_at_a_pace_and_an_administrator_at_any(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(
            nats_server, redis_server, tmp_path, keys=True, tenant_adapter_changes_per_minute=4
        ) as it:
            assert (await it.load("fox", 1, "acme")).status_code == 200
            files = {"adapter_config.json": b"{}"}
            assert (await it.ask("PUT", "/v1/adapters/x", "acme", files=files)).status_code == 400
            assert (await it.unload("fox", "acme")).status_code == 200
            assert (await it.ask("DELETE", "/v1/adapters/fox", "acme")).status_code == 404
            for refused in (
                await it.load("fox", 1, "acme"),
                await it.unload("fox", "acme"),
                await it.ask("PUT", "/v1/adapters/x", "acme", files=files),
                await it.ask("DELETE", "/v1/adapters/fox", "acme"),
            ):
                assert error(refused)[:2] == (429, "tenant_quota")
                assert 1 <= int(refused.headers["Retry-After"]) <= 15
            bus = it.it.bus
            asked = m.AdapterLoad(lora_name="fox", lora_path=it.folder(1))
            over_nats = bus.request(TENANT_ADAPTER_LOAD, asked, tenant_token(TenantId("acme")))
            assert await refusal(over_nats) == (429, "tenant_quota")
            assert (await it.load("fox", 1, "other")).status_code == 200
            for _ in range(5):
                assert (await it.load("owl", 2, "admin", load_inplace=True)).status_code == 200

    asyncio.run(scenario())


def test_wrong_requests_are_refused_by_name(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(nats_server, redis_server, tmp_path) as it:
            outside = str(write_adapter(tmp_path / "outside"))
            (tmp_path / "adapters" / "door").symlink_to(outside)
            bad = Path(it.folder(7))
            (bad / "adapter_model.safetensors").write_bytes(b"\xff" * 100)
            cases: list[tuple[dict[str, Any], tuple[int, str, str | None]]] = [
                ({"lora_path": "/x"}, (400, "invalid_request", "lora_name")),
                ({"lora_name": "a"}, (400, "invalid_request", "lora_path")),
                ({"lora_name": "a", "lora_path": 7}, (400, "invalid_request", "lora_path")),
                ({"lora_name": "a:b", "lora_path": "/x"}, (400, "lora_name", "lora_name")),
                ({"lora_name": MODEL, "lora_path": it.folder(1)}, (400, "name_taken", "lora_name")),
                (
                    {"lora_name": "a", "lora_path": outside},
                    (403, "adapter_path_forbidden", "lora_path"),
                ),
                (
                    {"lora_name": "a", "lora_path": f"{tmp_path}/adapters/door"},
                    (403, "adapter_path_forbidden", "lora_path"),
                ),
                (
                    {"lora_name": "a", "lora_path": f"{tmp_path}/adapters/none"},
                    (404, "not_found", "lora_path"),
                ),
                (
                    {"lora_name": "a", "lora_path": it.folder(1), "base_model_name": "none"},
                    (404, "model_not_found", "base_model_name"),
                ),
                (
                    {"lora_name": "a", "lora_path": it.folder(1), "pinned": True},
                    (400, "unsupported_value", "pinned"),
                ),
            ]
            for body, expected in cases:
                answer = await it.ask("POST", "/v1/load_lora_adapter", json=body)
                assert error(answer) == expected, answer.text
            answer = await it.ask(
                "POST", "/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(bad)}
            )
            assert error(answer)[:2] == (400, "adapter_invalid")
            assert it.stored() == set()
            await it.load("fox", 1)
            told = await it.chat(MODEL, adapter_id="none")
            assert error(told) == (404, "model_not_found", "adapter_id")
            told = await it.chat("none", adapter_id="fox")
            assert error(told) == (404, "model_not_found", "model")
            told = await it.chat(MODEL, adapter_id=["fox", "owl"])
            assert error(told)[::2] == (400, "adapter_id")
            told = await it.chat(MODEL, merged_adapters={"ids": ["fox"]})
            assert error(told) == (400, "unsupported_value", "merged_adapters")
            told = await it.chat(f"{MODEL}:none")
            assert error(told) == (404, "model_not_found", "model")
            told = await it.ask("POST", "/v1/embeddings", json={"model": "fox", "input": "x"})
            assert error(told) == (400, "wrong_endpoint", "model"), told.text
            told = await it.ask(
                "POST", "/v1/embeddings", json={"model": MODEL, "input": "x", "adapter_id": "fox"}
            )
            assert error(told) == (400, "unsupported_value", "adapter_id")
            it.it.fake.lora = None
            await eventually_answers(
                lambda: it.chat("fox"), lambda answer: answer.status_code == 400
            )
            told = await it.chat("fox")
            assert error(told) == (400, "adapters_unsupported", "model")
            assert MODEL in told.json()["error"]["message"]
            assert error(await it.load("owl", 1))[1] == "adapters_unsupported"

    asyncio.run(scenario())


async def refusal(asked: Awaitable[Any]) -> tuple[int, str]:
    with pytest.raises(SymphonyError) as refused:
        await asked
    return refused.value.http_status, refused.value.code


def test_the_same_over_nats(nats_server: Server, redis_server: Server, tmp_path: Path) -> None:
    """Whoever has accounts comes by a tenant's subject; keys say whether a tenant may."""

    async def scenario() -> None:
        async with place(nats_server, redis_server, tmp_path, keys=True) as it:
            bus = it.it.bus
            acme, other = (tenant_token(TenantId(name)) for name in ("acme", "other"))
            fox = m.AdapterLoad(lora_name="fox", lora_path=it.folder(1))
            info = await bus.request(TENANT_ADAPTER_LOAD, fox, acme)
            over_http = await it.ask("GET", "/v1/adapters/fox", "acme")
            assert over_http.json() == asdict(info)
            assert info.tenant == "acme" and (await it.ran_on("fox", "acme")) is not None
            named, all_of_them = m.AdapterNamed(lora_name="fox"), m.AdapterNamed()
            assert await bus.request(TENANT_ADAPTER_GET, named, acme) == info
            assert (await bus.request(TENANT_ADAPTER_LIST, all_of_them, acme)).data == [info]

            assert (await bus.request(TENANT_ADAPTER_LIST, all_of_them, other)).data == []
            unknown = 404, "model_not_found"
            assert await refusal(bus.request(TENANT_ADAPTER_GET, named, other)) == unknown
            assert await refusal(bus.request(TENANT_ADAPTER_UNLOAD, named, other)) == unknown
            theirs = m.AdapterNamed(lora_name="fox", tenant=TenantId("acme"))
            wrong = await refusal(bus.request(TENANT_ADAPTER_UNLOAD, theirs, other))
            assert wrong == (403, "wrong_tenant")
            assert await refusal(bus.request(ADAPTER_UNLOAD, theirs)) == (400, "invalid_request")
            assert await refusal(bus.request(ADAPTER_LOAD, fox)) == (403, "insufficient_scope")
            assert await refusal(bus.request(ADAPTER_UNLOAD, named)) == (403, "insufficient_scope")
            again = await refusal(bus.request(TENANT_ADAPTER_LOAD, fox, acme))
            assert again == (400, "adapter_exists")
            nowhere = m.AdapterLoad(lora_name="owl", lora_path="")
            answer = await refusal(bus.request(TENANT_ADAPTER_LOAD, nowhere, acme))
            assert answer == (400, "invalid_request")

            gone = await bus.request(TENANT_ADAPTER_UNLOAD, named, acme)
            assert gone == m.AdapterDeleted(id="fox")
            assert error(await it.chat("fox", "acme"))[0] == 404

    asyncio.run(scenario())


def files_of(folder: str, **more: bytes) -> list[tuple[str, Any]]:
    files = [("files", (path.name, path.read_bytes())) for path in sorted(Path(folder).iterdir())]
    return files + [("files", (name.replace("_dot_", "."), data)) for name, data in more.items()]


def test_an_adapter_is_uploaded(
    nats_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with place(nats_server, redis_server, tmp_path, adapter_bytes_max=100_000) as it:
            path, folder = "/v1/adapters/acme/fox", it.folder(1)
            tokenizer = contents(tmp_path / "demo" / "tokenizer.json") + b" " * 50_000
            more = {"README_dot_md": b"not taken", "tokenizer_dot_json": tokenizer}
            form = {"base_model_name": MODEL, "load_inplace": "false"}
            answer = await it.ask("PUT", path, files=files_of(folder, **more), data=form)
            assert answer.status_code == 200, answer.text
            shown = answer.json()
            assert shown["parent"] == MODEL and shown["root"] == "upload"
            ref = await it.ran_on("acme/fox")
            assert ref is not None and ref.adapter_hash == shown["adapter_hash"]
            assert (await it.ask("GET", path)).json() == shown
            assert (await it.ask("GET", "/v1/adapters")).json()["data"] == [shown]

            async def refused(*expected: Any, **request: Any) -> None:
                answer = await it.ask("PUT", path, **request)
                assert error(answer) == expected, answer.text

            good = files_of(folder)
            await refused(400, "adapter_exists", "lora_name", files=good)
            await refused(400, "adapter_invalid", "adapter_model.safetensors", files=good[:1])
            others = {"tokenizer_dot_json": b'{"model": {"vocab": {"a": 0}}}'}
            await refused(
                400, "adapter_invalid", "tokenizer.json", files=files_of(it.folder(3), **others),
                data={"load_inplace": "true"},
            )  # fmt: skip
            pickle = [("files", ("adapter_model.bin", b"x")), good[0]]
            await refused(400, "adapter_invalid", "adapter_model.bin", files=pickle)
            await refused(400, "invalid_request", "adapter_config.json", files=[good[0], good[0]])
            await refused(400, "invalid_request", "colour", files=good, data={"colour": "red"})
            await refused(400, "invalid_request", "shared", files=good, data={"shared": "maybe"})
            await refused(400, "invalid_request", None, json={"x": 1})
            await refused(
                400, "invalid_request", None, content=b"--b\r\n", headers=None
            ) if 0 else None
            large = files_of(folder, other_dot_bin=b"x" * 100_000)
            await refused(413, "adapter_too_large", "adapter_model.safetensors", files=large)
            answer = await it.ask("PUT", "/v1/adapters/a:b", files=good)
            assert error(answer) == (400, "lora_name", "lora_name")
            replaced = await it.ask(
                "PUT", path, files=files_of(it.folder(2)), data={"load_inplace": "true"}
            )
            assert replaced.json()["revision"] == 2

            await cut_off(it, path)
            assert not list((tmp_path / "fe" / "uploads").iterdir())
            answer = await it.ask("DELETE", path)
            assert answer.json() == {"id": "acme/fox", "object": "adapter.deleted", "deleted": True}
            assert error(await it.ask("GET", path))[0] == 404

            def full(*_: object) -> None:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(UnnamedFile, "append", full)
            await refused(507, "disk_full", None, files=good)
            assert (await it.chat(MODEL)).status_code == 200

    asyncio.run(scenario())


def contents(path: Path) -> bytes:
    return path.read_bytes()


async def cut_off(it: Place, path: str) -> None:
    """A client that goes in the middle of a file."""
    url = httpx.URL(it.it.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = (
        f"PUT {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Length: 90000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="f"; filename="adapter_config.json"\r\n\r\n{'
    )
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""


def test_while_redis_is_away_known_names_are_served(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(nats_server, redis_server, tmp_path) as it:
            await it.load("fox", 1)
            ref = await it.ran_on("fox")
            redis_server.kill()
            assert await it.ran_on("fox") == ref
            assert await it.ran_on(MODEL) is None
            assert await it.ran_on(f"{MODEL}:fox") == ref
            assert error(await it.chat("owl"))[:2] == (503, "session_store_unavailable")
            assert error(await it.load("owl", 2))[:2] == (503, "adapter_store_unavailable")
            assert error(await it.unload("fox"))[0] == 503
            listed = (await it.ask("GET", "/v1/models")).json()["data"]
            assert [each["id"] for each in listed] == [MODEL, "fox"]
            redis_server.start()
            await eventually_answers(
                lambda: it.load("owl", 2), lambda answer: answer.status_code == 200
            )
            assert await it.ran_on("owl") is not None

    asyncio.run(scenario())


def test_an_advisory_may_name_an_adapter(
    nats_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with place(nats_server, redis_server, tmp_path) as it:
            heard: list[m.Advisory] = []

            async def answer(advisory: m.Advisory) -> m.AdvisoryState:
                heard.append(advisory)
                return m.AdvisoryState(session_id=advisory.session_id, state="placed")

            await it.it.bus.serve(ADVISORY_SUBMIT, answer)
            await it.it.bus.flush()
            await it.load("fox", 1)
            ref = await it.ran_on("fox")
            for model in ("fox", f"{MODEL}:fox", MODEL, "none", None):
                body = {"session_id": "s", "model_id": model}
                status = (await it.ask("POST", "/v1/advisories", json=body)).status_code
                assert status == (404 if model == "none" else 202)
            told = [(advisory.model_id, advisory.adapter) for advisory in heard]
            assert told == [(MODEL, ref), (MODEL, ref), (MODEL, None), (None, None)]
            forged = m.Advisory(session_id=SessionId("s"), model_id=ModelId(MODEL), adapter=ref)
            await it.it.bus.request(
                TENANT_ADVISORY_SUBMIT, forged, tenant_token(TenantId("default"))
            )
            assert heard[-1].adapter is None, "a stranger's word for it does not count"

    asyncio.run(scenario())
