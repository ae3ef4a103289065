"""What a streamed token costs a frontend but for the sockets, for `symphony bench core`.

Its application answers so many chats at once, each with `stream`, as it does under uvicorn; only
no reader. A step's tokens come as the bytes of a message and leave as server-sent events. All
that lies between is the frontend's own code, on its own kind of event loop. What NATS' client and
uvicorn do for each message and each event, and the kernel, comes on top.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import orjson
import uvloop
from fastapi import FastAPI

from loadtest.bench.core import samples
from loadtest.bench.core.timing import Took
from services.frontend.adapters.directory import AdapterDirectory
from services.frontend.app import (
    App,
    Base,
    ModelParts,
    Observability,
    TenantParts,
    TurnParts,
)
from services.frontend.asgi import make_api
from services.frontend.config import FrontendConfig
from services.frontend.core.limits.capacity import Capacity, Slots
from services.frontend.core.limits.quotas import Quotas, TenantLimits
from services.frontend.core.models.fleet import Fleet
from services.frontend.core.observability.trace_sampler import TraceSampler
from services.frontend.core.turns.turns import TurnLimits, Turns
from services.frontend.models.registry import ServedModel
from services.frontend.observability.tracing import RequestTracer
from services.frontend.rendering.texts import Texts, is_short
from services.frontend.rendering.tokenizer import ModelTokenizer
from services.frontend.tenants.auth import Keyring
from services.frontend.turns.hub import Hub
from shared.bus import Bus
from shared.ids import TurnId
from shared.runtime.clock import SystemClock
from shared.service import Runtime
from shared.tracing import NO_TRACER
from shared.wire.messages import StepOutput, TurnsSubmit, decode, encode
from shared.wire.subjects import STEP_OUTPUT, TURN_SUBMIT, Subject

TURNS_A_STEP = 32
STEPS = 8  # in a round
REPORTING = 1000  # workers
TOKENS_PER_S = 25  # of a stream
TEXT = "It is not what a reply says that takes the time, but how many tokens it is made of. "
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def measure(num_streams: int, num_rounds: int) -> dict[str, Any]:
    """Microseconds of a token that comes with others, or alone in its message, and of a worker's
    report; and how many streams of `TOKENS_PER_S` that is on one core."""
    took = Took()
    num_bytes = uvloop.run(_stream(num_streams, num_rounds, took))
    _hear_reports(num_rounds, took)
    us = took.us()
    return {
        "frontend": {
            "streams": num_streams,
            **{f"{name}_us": each_us for name, each_us in us.items()},
            "token_bytes": round(num_bytes),
            f"streams_at_{TOKENS_PER_S}_per_s": round(1e6 / TOKENS_PER_S / us["token"]),
        }
    }


def _hear_reports(num_rounds: int, took: Took) -> None:
    fleet = Fleet()
    for seq in range(1, 1 + num_rounds):
        reports = [samples.report(number, seq, ()) for number in range(REPORTING)]
        took.each("report", lambda report: fleet.on_report(report, 1), reports)


async def _stream(num_streams: int, num_rounds: int, took: Took) -> float:
    """Returns bytes of events a token."""
    async with AsyncExitStack() as stack:
        edge = await Edge.open(stack, make_served())
        chats = [Chat() for _ in range(num_streams)]
        tasks = [asyncio.create_task(edge.api(*chat.asgi())) for chat in chats]
        turns = await edge.bus.submitted(num_streams)
        words = edge.words()
        index = num_bytes = 0
        for number in range(1 + num_rounds):
            for name, num_together in (("token", TURNS_A_STEP), ("token_alone", 1)):
                steps = [
                    [encode(each) for each in _outputs(turns, num_together, at, next(words))]
                    for at in range(index, index + STEPS)
                ]
                index += STEPS
                num_before = sum(chat.num_bytes for chat in chats)
                began_ns = time.process_time_ns()
                for step in steps:
                    for data in step:
                        edge.bus.hear(data)
                        await asyncio.sleep(0)  # as the reader of NATS' socket lets others go on
                    await edge.bus.settle()
                took_ns = time.process_time_ns() - began_ns
                num_bytes = sum(chat.num_bytes for chat in chats) - num_before
                if number:  # the first one brings roles and heads
                    took.add(name, took_ns, STEPS * num_streams)
        assert all(chat.num_events >= index for chat in chats), "tokens are missing"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return num_bytes / (STEPS * num_streams)


def _outputs(
    turns: list[TurnId], num_together: int, index: int, token: int
) -> Iterator[StepOutput]:
    """What the workers send of one token of each turn, so many in a message."""
    for at in range(0, len(turns), num_together):
        yield samples.output(turns[at : at + num_together], index, token)


class _Bus:
    """Takes what is published, and hands over what subscribers receive."""

    payload_bytes_max = 1 << 20

    def __init__(self) -> None:
        self._on_step: Callable[[StepOutput], None] | None = None
        self._turns: asyncio.Queue[TurnId] = asyncio.Queue()

    async def subscribe(self, subject: Subject[Any, Any], handler: Any, *_: str) -> None:
        if subject is STEP_OUTPUT:
            self._on_step = handler

    async def serve(self, *_: object) -> None:
        """There are no requests."""

    def on_reconnect(self, _: object) -> None:
        """It is never away."""

    async def publish(self, subject: Subject[Any, Any], message: Any, *_: str) -> None:
        if subject is TURN_SUBMIT:
            assert isinstance(message, TurnsSubmit)
            for turn in message.turns:
                self._turns.put_nowait(turn.turn_id)

    def hear(self, data: bytes) -> None:
        """A worker's step, as `shared.bus` hands it over."""
        assert self._on_step is not None
        self._on_step(decode(StepOutput, data))

    async def submitted(self, num: int) -> list[TurnId]:
        """So many turns, once they are there."""
        return [await self._turns.get() for _ in range(num)]

    async def settle(self) -> None:
        """Let everybody do what there is to do."""
        for _ in range(4):
            await asyncio.sleep(0)


class Chat:
    """A client that asks, and reads everything at once.

    Attributes:
        num_events, num_bytes: that it was sent.
    """

    def __init__(self) -> None:
        self.num_events = self.num_bytes = 0
        message = {"role": "user", "content": "How are you today?"}
        body = {"model": samples.MODEL, "messages": [message], "max_tokens": 4096, "stream": True}
        self._body = orjson.dumps(body)
        self._is_read = False

    def asgi(self) -> tuple[dict[str, Any], Any, Any]:
        """What uvicorn calls the application with."""
        headers = [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self._body)).encode()),
        ]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions",
            "query_string": b"", "root_path": "", "headers": headers,
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "state": {},
        }  # fmt: skip
        return scope, self._receive, self._send

    async def _receive(self) -> dict[str, Any]:
        if self._is_read:
            await asyncio.Future()  # it never hangs up
        self._is_read = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        assert message.get("status", 200) == 200, message
        body = message.get("body", b"")
        self.num_events += body.count(b"data: ")
        self.num_bytes += len(body)


@dataclass(slots=True)
class Edge:
    """A frontend's application, and what it hears."""

    api: FastAPI
    bus: _Bus
    tokenizer: ModelTokenizer

    @classmethod
    async def open(
        cls, stack: AsyncExitStack, served: ServedModel, adapters: AdapterDirectory | None = None
    ) -> "Edge":
        """Args:
        adapters: by their names; None: the model has every name.
        """
        bus, clock, config = _Bus(), SystemClock(), FrontendConfig()
        runtime = Runtime("frontend", "bench", cast(Bus, bus), stack)
        stack.push_async_callback(runtime.cancel_tasks)
        hub = Hub(cast(Bus, bus), clock, samples.FRONTEND, Turns(samples.FRONTEND, TurnLimits()))
        await hub.start(runtime)

        async def model(*_: object) -> ServedModel:
            return served

        unused = cast(Any, None)
        app = App(
            base=Base(config=config, bus=cast(Bus, bus), clock=clock),
            library=ModelParts(
                models=unused,
                adapters=adapters or cast(Any, SimpleNamespace(model=model)),
                uploads=unused,
                texts=InProcessTexts(unused, unused),
                grammars=unused,
            ),
            storage=unused,
            turns=TurnParts(
                hub=hub,
                jobs=unused,
                hints=unused,
            ),
            tenants=TenantParts(
                slots=Slots(1 << 20),
                capacity=Capacity(1, 1 << 30),
                quotas=Quotas(TenantLimits(), {}),
                gates=unused,
                adapter_changes=unused,
            ),
            observability=Observability(
                metrics=unused,
                feed=unused,
                tracer=RequestTracer(NO_TRACER, clock, TraceSampler(0.0, 0.0), lambda: 0.5),
            ),
        )
        return cls(make_api(app, Keyring(None)), bus, served.tokenizer)

    def words(self) -> Iterator[int]:
        """Tokens of a text that goes on for ever."""
        while True:
            yield from self.tokenizer.encode(TEXT, special=False)


class InProcessTexts(Texts):
    """Renders short chats here, by templates that are known to be harmless."""

    async def template_names(self, tokenizer: ModelTokenizer) -> frozenset[str]:
        return tokenizer.template_names

    async def render(
        self, tokenizer: ModelTokenizer, messages: list[dict[str, Any]], options: dict[str, Any]
    ) -> str:
        if is_short(messages, options):
            return tokenizer.render(messages, options)
        return await super().render(tokenizer, messages, options)


def make_served() -> ServedModel:
    """The model of all chats."""
    return ServedModel(samples.CARD, make_tokenizer())


def make_tokenizer() -> ModelTokenizer:
    """A byte-level BPE as models have it, trained on one sentence: most words are a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([TEXT] * 8, trainer)
    return ModelTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE))
