"""Inputs are made ready off the event loop, and only while somebody waits for them."""

import asyncio
import base64
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.frontend.api.bodies.oneshot import EncodedBody, OneshotBody, inputs_of
from services.frontend.api.oneshot.inputs import LARGE_PIXELS, Context
from services.frontend.api.oneshot.requests import run_images, run_texts
from services.frontend.api.oneshot.texts import CHUNK_CHARS_MAX, CHUNK_INPUTS, chunks
from services.frontend.core.limits.capacity import Capacity
from services.frontend.models.images import ImageProcessor, Pixels, TooManyPixels
from services.frontend.models.registry import OneshotModel
from services.frontend.observability.access_log import serving
from services.frontend.rendering.tokenizer import Cut, ModelInput, ModelTokenizer, Query
from services.frontend.tenants.gates import THREADS, Gates
from services.frontend.turns.hub import ClientGone
from services.frontend.turns.job_hub import JobError, PendingJobs
from shared.errors import InvalidRequest
from shared.ids import ModelId, TenantId
from shared.runtime.clock import ManualClock
from shared.wire.messages import OneshotCard, OneshotVariant

MS = 1_000_000
SLO_MS = 60_000  # threads have that long, however busy the machine is
CARD = OneshotCard(
    model_id=ModelId("m"), task="embed", modality="text", source="/m", fingerprint="f",
    slo_ms=SLO_MS,
    variants=[
        OneshotVariant(variant=512, batch_ns=[2 * MS]), OneshotVariant(variant=0, batch_ns=[9 * MS])
    ],
    num_values=4,
)  # fmt: skip


class Words(ModelTokenizer):
    """Every text has one token. Remembers where it was called, and does something each time."""

    def __init__(self, on_call: Callable[[], None] = lambda: None) -> None:
        self.vocab_size = 10
        self.chars_per_token_max = 100
        self.threads: list[threading.Thread] = []
        self._on_call = on_call

    def encode_query(self, text: str) -> Query:
        self.threads.append(threading.current_thread())
        return Query(text, [1], None)

    def encode_inputs(
        self, texts: Sequence[str], query: Query | None, *, special: bool, cut: Cut
    ) -> list[ModelInput]:
        self.threads.append(threading.current_thread())
        self._on_call()
        return [ModelInput([1], []) for _ in texts]


class House:
    """A `Context` without a house behind it: what reaches the scheduler ends with `Reached`."""

    class Reached(Exception):
        """The inputs were ready."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.capacity = Capacity(1000, 10**9)
        hub: Any = SimpleNamespace(open=self._open)
        self.pending = PendingJobs(hub, self.capacity, 0, "r")
        config = SimpleNamespace(scheduler_shards=1, image_bytes_max=100, image_pixels_max=100)
        self.gates = Gates(ThreadPoolExecutor, is_shared=True)
        app: Any = SimpleNamespace(clock=self.clock, config=config, gates=self.gates)
        self.context = Context(app, self.pending)

    def texts(self, tokenizer: Words, texts: Sequence[str], query: str | None = None) -> None:
        model = OneshotModel(CARD, tokenizer)
        with self.pending:
            body = EncodedBody(model="m")
            inputs = inputs_of(body, list(texts), "input", None if query is None else [query])
            asyncio.run(self._run(run_texts(self.context, model, body, inputs)))

    def images(self, processor: ImageProcessor, num: int) -> None:
        model = OneshotModel(CARD, processor)
        urls = [
            f"data:image/png;base64,{base64.b64encode(bytes([at])).decode()}" for at in range(num)
        ]
        with self.pending:
            asyncio.run(self._run(run_images(self.context, model, OneshotBody(model="m"), urls)))

    @staticmethod
    async def _run(work: Any) -> None:
        await work

    def _open(self, new: Any) -> Any:
        raise House.Reached


def many(num: int) -> list[str]:
    return ["w" * 30] * num


def test_short_requests_are_tokenized_at_once() -> None:
    house, tokenizer = House(), Words()
    with pytest.raises(House.Reached):
        house.texts(tokenizer, many(5), "query")
    assert set(tokenizer.threads) == {threading.main_thread()}
    assert house.capacity.num == 0


@pytest.mark.parametrize(
    ("texts", "query"),
    [
        (many(500), None),  # each chunk alone would be short
        (["w"] * 50, "q" * 1000),  # the query comes again with each document
        (["w"], "q" * 30_000),
    ],
)
def test_long_requests_are_tokenized_in_threads(texts: list[str], query: str | None) -> None:
    tokenizer = Words()
    with pytest.raises(House.Reached):
        House().texts(tokenizer, texts, query)
    assert tokenizer.threads and threading.main_thread() not in tokenizer.threads


def test_a_query_that_no_model_could_hold_is_not_tokenized() -> None:
    tokenizer = Words()
    with pytest.raises(InvalidRequest) as caught:
        House().texts(tokenizer, ["w"], "q" * 13_200_000)
    assert caught.value.param == "query" and not tokenizer.threads


def test_chunks_are_short() -> None:
    half = CHUNK_CHARS_MAX // 2
    assert [*chunks([])] == []
    assert [*chunks([1] * (CHUNK_INPUTS + 1))] == [
        range(CHUNK_INPUTS), range(CHUNK_INPUTS, CHUNK_INPUTS + 1)
    ]  # fmt: skip
    assert [len(some) for some in chunks([half, half, 1, 9 * half, 9 * half])] == [2, 1, 1, 1]


@pytest.mark.parametrize("num", [5, 500])
def test_nothing_is_tokenized_for_who_hung_up(num: int) -> None:
    house, tokenizer = House(), Words()
    house.context.abandon()
    with pytest.raises(ClientGone):
        house.texts(tokenizer, many(num))
    assert not tokenizer.threads


def test_tokenizing_stops_when_the_client_hangs_up() -> None:
    house = House()
    tokenizer = Words(house.context.abandon)
    with pytest.raises(ClientGone):
        house.texts(tokenizer, many(500))
    assert len(tokenizer.threads) == 1 and house.capacity.num == 0


def test_tokenizing_stops_when_it_is_too_late() -> None:
    house = House()
    tokenizer = Words(lambda: house.clock.advance((SLO_MS // 2 - 1) * MS + 1))
    with pytest.raises(JobError, match="its inputs were ready too late for the target") as caught:
        house.texts(tokenizer, many(500))
    assert (caught.value.code, caught.value.http_status) == ("deadline_exceeded", 503)
    assert len(tokenizer.threads) == 2, "the fastest batch takes 2 ms of it"


def test_a_target_that_cannot_be_met_is_told_before_work_begins() -> None:
    tokenizer = Words()
    house = House()
    house.context.header_slo_ms = 1.5
    with pytest.raises(InvalidRequest) as caught:
        house.texts(tokenizer, many(500))
    assert caught.value.code == "slo_too_short" and not tokenizer.threads


def test_without_a_target_a_slow_model_is_asked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its profile may be of a busy machine."""
    monkeypatch.setitem(globals(), "CARD", replace(CARD, slo_ms=1.5))
    with pytest.raises(House.Reached):
        House().texts(Words(), many(5))


class Slow(ImageProcessor):
    """Remembers the first bytes of what it began and ended; `on_begin` may raise or wait."""

    def __init__(self, on_begin: Callable[[int], None]) -> None:
        super().__init__(height=1, width=1, resize_to=1)
        object.__setattr__(self, "on_begin", on_begin)
        object.__setattr__(self, "begun", [])
        object.__setattr__(self, "ended", [])

    def decode(self, data: bytes, pixels_max: int) -> Pixels:
        me: Any = self
        me.begun.append(data[0])
        try:
            me.on_begin(data[0])
        finally:
            me.ended.append(data[0])
        return Pixels("", 1, 1)


def test_a_bad_image_ends_the_request_when_the_others_rest() -> None:
    house, release = House(), threading.Event()
    held: list[int] = []

    def let_go() -> None:
        held.append(house.capacity.num)
        release.set()

    def on_begin(at: int) -> None:
        if at == 1:
            threading.Timer(0.2, let_go).start()
            raise InvalidRequest("broken")
        assert release.wait(10)

    processor: Any = Slow(on_begin)
    with pytest.raises(InvalidRequest) as caught:
        house.images(processor, 40)
    assert caught.value.param == "input[1]"
    assert held == [40], "the room is taken while others decode"
    assert sorted(processor.begun) == sorted(processor.ended)
    assert len(processor.begun) <= THREADS + 1
    assert house.capacity.num == 0


@pytest.mark.parametrize("is_gone", [True, False])
def test_images_that_nobody_waits_for_are_not_decoded(is_gone: bool) -> None:
    house = House()

    def on_begin(_: int) -> None:
        house.context.abandon() if is_gone else house.clock.advance(2 * SLO_MS * MS)

    processor: Any = Slow(on_begin)
    with pytest.raises(ClientGone if is_gone else JobError):
        house.images(processor, 40)
    assert 1 <= len(processor.begun) <= THREADS
    assert house.capacity.num == 0


def test_a_deadline_ends_the_wait_for_a_busy_pool() -> None:
    house, release = House(), threading.Event()
    house.context.header_slo_ms = 20.0
    blocked = [house.gates.images._threads.submit(release.wait, 10) for _ in range(THREADS)]
    processor: Any = Slow(lambda _: None)
    with pytest.raises(JobError):
        house.images(processor, 3)
    assert not processor.begun and not any(future.done() for future in blocked)
    release.set()


def test_a_tenant_s_images_and_texts_leave_threads_to_another() -> None:
    house, other, release = House(), House(), threading.Event()
    other.context.app = house.context.app
    begun = threading.Semaphore(0)

    def wait(_: int = 0) -> None:
        begun.release()
        assert release.wait(10)

    async def scenario() -> None:
        image = [f"data:image/png;base64,{base64.b64encode(b'x').decode()}"]
        body, slow = OneshotBody(model="m"), cast(Any, Slow(wait))
        fast = cast(Any, Slow(lambda _: None))
        with serving(TenantId("a")):
            images = run_images(house.context, OneshotModel(CARD, slow), body, image * 40)
            texts = EncodedBody(model="m")
            words = inputs_of(texts, list(many(500)), "input")
            works = [images, *(
                run_texts(house.context, OneshotModel(CARD, Words(wait)), texts, words)
                for _ in range(THREADS)
            )]  # fmt: skip
            held = [asyncio.create_task(work) for work in works]
        for _ in range(THREADS):  # half of the one kind, and half of the other
            await asyncio.to_thread(begun.acquire)
        with serving(TenantId("b")):
            with pytest.raises(House.Reached):
                await run_images(other.context, OneshotModel(CARD, fast), body, image)
            with pytest.raises(House.Reached):
                await run_texts(other.context, OneshotModel(CARD, Words()), texts, words)
        assert not begun.acquire(blocking=False) and len(slow.begun) == THREADS // 2
        release.set()
        await asyncio.gather(*held, return_exceptions=True)

    asyncio.run(scenario())


def test_large_images_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    house, threads = House(), set[str]()
    monkeypatch.setattr(house.context.app.config, "image_pixels_max", 10 * LARGE_PIXELS)

    class Large(Slow):
        def decode(self, data: bytes, pixels_max: int) -> Pixels:
            if data[0] % 2 and pixels_max <= LARGE_PIXELS:
                raise TooManyPixels("large")
            if data[0] % 2:
                threads.add(threading.current_thread().name)
            return super().decode(data, pixels_max)

    processor: Any = Large(lambda _: None)
    with pytest.raises(House.Reached):
        house.images(processor, 20)
    assert sorted(processor.ended) == [*range(20)]
    assert threads and all(name.startswith("large") for name in threads)


def test_an_image_that_is_too_large_is_named() -> None:
    class Huge(Slow):
        def decode(self, data: bytes, pixels_max: int) -> Pixels:
            raise TooManyPixels("huge")

    with pytest.raises(InvalidRequest, match="huge") as caught:
        House().images(cast(Any, Huge(lambda _: None)), 1)
    assert caught.value.param == "input[0]"
