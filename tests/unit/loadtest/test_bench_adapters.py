"""The parts of `bench adapters`: who is asked for, how large things are, and what is counted."""

import asyncio
import gzip
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from prometheus_client import generate_latest

from loadtest.bench import adapters
from loadtest.bench.adapters.load import BASE, Clients, Lengths
from loadtest.bench.adapters.registering import register_all
from loadtest.bench.adapters.sizes import KV_DISK_BYTES, Sizes, sizes_of
from loadtest.bench.adapters.summary import of_clients, of_memory
from loadtest.bench.adapters.worker_metrics import Observed, parse_metrics
from loadtest.chaos.sse import Stream
from loadtest.jobs.processes import Memory, memory_of
from loadtest.popularity import best_share, shares_of
from services.worker import metrics
from shared.adapters.config import CONFIG_FILE
from shared.adapters.layout import image_bytes, layout_image
from shared.errors import InvalidRequest, PeerUnavailable
from tests.adapters import CARD as FEW

CARD = replace(FEW, dtype="float32")
NOWHERE = Path("/nowhere/trace.csv.gz")
TOKENS = 2


def test_shares_are_of_the_wanted_popularity_in_an_order_of_their_own() -> None:
    zipf = shares_of("zipf:1", 50, NOWHERE, seed=1)
    wanted = 1 / np.arange(1, 51)
    assert sorted(zipf, reverse=True) == pytest.approx(list(wanted / wanted.sum()))
    assert list(zipf) != sorted(zipf, reverse=True), "the most popular ones would have one rank"
    assert list(zipf) == list(shares_of("zipf:1", 50, NOWHERE, seed=1))
    assert list(zipf) != list(shares_of("zipf:1", 50, NOWHERE, seed=2))
    assert shares_of("uniform", 4, NOWHERE, seed=1).tolist() == [0.25] * 4
    assert best_share(zipf, 50) == pytest.approx(1)
    assert best_share(zipf, 2) == pytest.approx(1.5 / wanted.sum())


def test_adapters_are_asked_for_as_functions_were_called(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    trace.write_bytes(gzip.compress(b"fn,m1,m2\na,1,2\nb,0,6\nc,1,0\n"))
    shares = shares_of("maf", 3, trace, seed=1)
    assert sorted(shares) == pytest.approx([0.1, 0.3, 0.6])
    drawn = {tuple(np.round(shares_of("maf", 1, trace, seed), 3)) for seed in range(3)}
    assert drawn == {(1.0,)}
    with pytest.raises(InvalidRequest, match=r"the trace has 3 functions.*--adapters 4"):
        shares_of("maf", 4, trace, seed=1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("maf", r"maf needs the Azure Functions trace: /nowhere/trace.csv.gz cannot be read"),
        ("zipf", "--popularity zipf: use uniform, zipf:S"),
        ("zipf:x", "--popularity zipf:x: use uniform, zipf:S"),
    ],
)
def test_a_popularity_that_cannot_be_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        shares_of(text, 3, NOWHERE, seed=1)


def test_sizes_are_means_of_the_ranks() -> None:
    sizes = sizes_of(CARD, ["up_proj"], [4, 64])
    images = [image_bytes(CARD, layout_image(CARD, {"mlp.up_proj": rank})) for rank in (4, 64)]
    assert sizes.image == sum(images) / 2 > images[0]
    assert sizes.source == 34 * (16 + 32) * CARD.num_layers * 4
    assert sizes_of(CARD, [], [4]).source == 4 * (16 + 16 + 16 + 32) * CARD.num_layers * 4
    assert sizes.block == CARD.num_layers * CARD.page_bytes


def test_a_pool_has_room_for_images_beside_whole_blocks_of_turns() -> None:
    assert Sizes(1000.5, 0, 10).pool_bytes(room=2, turns=3, turn_tokens=80) == 2001 + 3 * 2 * 10
    assert Sizes(1000.5, 0, 10).pool_bytes(room=1, turns=1, turn_tokens=64) == 1000 + 10


def test_a_full_disk_is_told_of_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(image=2e9, source=1e9, block=1)
    needed = 10e9 + 1.25 * (20e9 + KV_DISK_BYTES)
    for free, is_enough in ((needed + 1, True), (needed - 1e9, False)):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda _folder, usage=usage: usage)
        if is_enough:
            sizes.check_disk(Path("/"), 10)
        else:
            with pytest.raises(InvalidRequest, match=r"39.4 GB free, and 40.4 GB may be needed"):
                sizes.check_disk(Path("/"), 10)


def test_what_the_worker_counted_since_then() -> None:
    def counted() -> None:
        loads, starts = metrics.ADAPTER_LOAD_SECONDS, metrics.ADAPTER_FIRST_TOKEN_SECONDS
        loads.labels("bench", "files").observe(0.5)
        starts.labels("bench", "resident").observe(0.01)
        starts.labels("bench", "resident").observe(0.03)
        starts.labels("bench", "waited").observe(1.0)

    def seen() -> str:
        return generate_latest().decode()

    counted()
    metrics.ADAPTER_FIRST_TOKEN_SECONDS.labels("bench", "streamed").observe(1.0)
    before = parse_metrics(seen())
    counted()
    metrics.ADAPTER_FIRST_TOKEN_SECONDS.labels("other", "waited").observe(3.0)
    metrics.ADAPTER_LOAD_FAILURES.labels("bench").inc(2)
    since = parse_metrics(seen()).since(before)
    assert since.starts.keys() == {"resident", "waited"}
    assert since.starts["resident"].num == 2
    figures = since.figures()
    assert figures["hit_share"] == 0.5
    assert figures["starts"] == {"resident": 2, "waited": 2}
    assert figures["start_ttft_ms"] == {"resident": 20.0, "waited": 2000.0}
    assert figures["loads"] == {"files": 1} and figures["load_ms"] == {"files": 500.0}
    assert figures["load_failures"] == 2
    assert parse_metrics("").figures()["hit_share"] == 0
    assert Observed(3, 1.5) - Observed(1, 0.5) == Observed(2, 1.0)


def stream(client: int, *, ttft_s: float = 0.1, tokens: int = TOKENS, trouble: str = "") -> Stream:
    seen = Stream(client=client, body=0, sent_at=5.0, trouble=trouble)
    seen.pieces_at = [5.0 + ttft_s, 9.0] if tokens else []
    seen.tokens = [7] * tokens
    return seen


def test_clients_figures_count_every_kind_of_failure() -> None:
    seen = [
        stream(0),
        stream(0, ttft_s=0.3),
        stream(3, tokens=1),
        stream(4, tokens=0, trouble="404 no"),
        stream(BASE, ttft_s=0.5),
        stream(BASE, trouble="the connection ended"),
    ]
    figures = of_clients(seen, TOKENS)
    assert (figures["requests"], figures["base_requests"]) == (6, 2)
    assert figures["adapters_asked"] == 3
    assert figures["failures"] == 3
    assert figures["troubles"] == {
        "1 tokens in place of 2": 1, "404 no": 1, "the connection ended": 1
    }  # fmt: skip
    assert figures["ttft_ms"] == {"p50": 100.0, "p99": 296.0, "max": 300.0}
    assert figures["base_ttft_ms"]["max"] == 500.0
    assert of_clients([], TOKENS)["ttft_ms"] is None


def test_memory_is_told_with_and_without_what_is_shared() -> None:
    own = memory_of(os.getpid())
    assert 0 < own.own_mb < own.resident_mb
    told = of_memory({"kvstore": Memory(10.0, 5.0)}, {"kvstore": Memory(12.0, 5.04)})
    assert told == {"kvstore": {"first": 10.0, "last": 12.0, "own_first": 5.0, "own_last": 5.0}}


def test_failed_requests_and_dead_processes_are_violations() -> None:
    fine: dict[str, object] = {
        "failures": 0,
        "warm_up_failures": 0,
        "troubles": {},
        "warm_up_troubles": {},
    }
    fine |= {"restarted": []}
    bad = fine | {"failures": 1, "warm_up_failures": 2, "troubles": {"x": 1}}
    bad |= {"warm_up_troubles": {"y": 2}}
    dead = fine | {"restarted": ["kvstore"]}
    found = {"popularity": {"uniform": fine, "maf": bad, "zipf:1": dead}}
    assert adapters._violations(found) == [
        "maf: 3 requests failed: x, y", "zipf:1: kvstore was started again"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--adapters", "0"], "--adapters: at least 1"),
        (["--warm-seconds", "0"], "--warm-seconds: more than 0"),
        (["--base-share", "1.5"], "--base-share 1.5"),
        (["--ranks", "8,x"], "--ranks 8,x"),
        (["--popularity", "zipf:1,rare"], "--popularity rare"),
    ],
)
def test_options_that_mean_nothing_are_named(options: list[str], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        adapters.run(options)


class Frontend:
    """Answers each request and keeps what it was asked: a stream of `TOKENS` tokens, or what
    `refused` says of the model or adapter."""

    def __init__(self, refused: Sequence[str] = ()) -> None:
        self.refused = refused
        self.asked: list[dict[str, object]] = []
        self.had_files: list[bool] = []

    async def on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        body = orjson.loads(await reader.readexactly(length))
        self.asked.append(body)
        name = body.get("model") or body["lora_name"]
        if "lora_path" in body:
            self.had_files.append((Path(body["lora_path"]) / CONFIG_FILE).is_file())
        status, events = b"200 OK", b'data: {"choices":[{"token_ids":[1]}]}\n\n' * TOKENS
        if name in self.refused:
            status, events = b"429 No", b"too many"
        else:
            events += b"data: [DONE]\n\n"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(events)) + events)
        writer.close()
        await writer.wait_closed()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[int]:
        """Yields the port."""
        async with await asyncio.start_server(self.on_connection, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]


def clients_of(port: int) -> Clients:
    return Clients(
        port=port, base="base", names=["a", "b"], lengths=Lengths(prompt=3, max_tokens=TOKENS),
        vocab_size=10, base_share=0.5, seed=1,
    )  # fmt: skip


def test_load_goes_to_adapters_and_the_base_by_their_shares() -> None:
    frontend, shares = Frontend(refused=["b"]), np.array([2 / 3, 1 / 3])

    async def scenario() -> tuple[list[Stream], list[Stream], float]:
        async with frontend.opened() as port:
            opened = await clients_of(port).open_loop(shares, rate=1000, seconds=0.2)
            num_opened = len(frontend.asked)
            closed, per_s = await clients_of(port).closed_loop(np.array([0.0, 1.0]), 2, 0.1)
            assert len(opened) == num_opened and len(closed) == len(frontend.asked) - num_opened
            return opened, closed, per_s

    opened, closed, per_s = asyncio.run(scenario())
    asked = Counter(each["model"] for each in frontend.asked[: len(opened)])
    assert asked["a"] == pytest.approx(67, rel=0.3)
    assert asked["b"] == pytest.approx(33, rel=0.3)
    assert asked["base"] == pytest.approx(100, rel=0.3)
    for each in frontend.asked:
        prompt = each["prompt"]
        assert isinstance(prompt, list) and len(prompt) == 3 and each["max_tokens"] == TOKENS
    figures = of_clients(opened, TOKENS)
    assert figures["troubles"] == {"429 too many": asked["b"]}
    assert figures["base_requests"] == asked["base"] and figures["adapters_asked"] == 2
    assert {each.client for each in closed} == {1, BASE}
    num_well = sum(each.client == BASE for each in closed)
    assert 0 < per_s <= num_well / 0.1


def test_adapters_are_written_for_their_registration_only(tmp_path: Path) -> None:
    frontend = Frontend()

    async def scenario(frontend: Frontend) -> dict[str, object]:
        async with frontend.opened() as port:
            return await register_all(port, ["a", "b", "c"], CARD, "qv", [4, 8], tmp_path)

    figures = asyncio.run(scenario(frontend))
    assert figures["num"] == 3
    assert [each["lora_name"] for each in frontend.asked] == ["a", "b", "c"]
    assert len({each["lora_path"] for each in frontend.asked}) == 3
    assert frontend.had_files == [True] * 3, "the house could not have copied them"
    assert not list(tmp_path.iterdir()), "files were left behind"
    with pytest.raises(PeerUnavailable, match="adding b: 429 too many"):
        asyncio.run(scenario(Frontend(refused=["b"])))
