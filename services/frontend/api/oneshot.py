"""One request to a one-shot model, from what its client sent to what its model made of it.

The endpoints differ in what they read and how they write; all that lies between is here.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from fastapi import Request, Response

from services.frontend.api.answers import Json
from services.frontend.api.documents import header
from services.frontend.api.oneshot_bodies import OneshotBody, Text
from services.frontend.app import App, app_of
from services.frontend.core.job_events import NewJob, NewRequest
from services.frontend.images import THREADS, ImageProcessor, data_url_bytes
from services.frontend.job_hub import Inquiry
from services.frontend.models import OneshotModel
from services.frontend.request import SLO_HEADER, slo_ms, watched
from services.frontend.tokenizer import INLINE_CHARS_MAX, ModelInput, ModelTokenizer
from shared.errors import InvalidRequest, SymphonyError
from shared.ids import JobId, shard_of
from shared.messages import JobInput, pack_ints

CHUNK_INPUTS = 64  # tokenized at once
INPUT_CHARS = 50  # of text that cost about as much as an input's overhead
TOKENS_MAX = 131_072  # of one input, if its model names no limit
CHARS_PER_TOKEN_MAX = 100  # a text with more is not tokenized only to learn how long it is
ENTRY_BYTES = 256  # of an input, beside its tokens or pixels

SLO_HEADERS = (header(SLO_HEADER, "number", "Target for the whole answer, milliseconds"),)

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Results:
    """Attributes:
    packed: base64 of little-endian float32, one an input.
    num_tokens: of all inputs together.
    """

    packed: list[str]
    num_tokens: int

    def values(self, model: OneshotModel) -> list[Values]:
        """Float32 [num_values], one an input.

        Raises:
            SymphonyError: a worker sent something else.
        """
        return [unpack_values(packed, model.card.num_values) for packed in self.packed]


@dataclass(frozen=True, slots=True)
class Ask:
    """What an endpoint works with beside its body."""

    app: App
    inquiry: Inquiry
    header_slo_ms: float | None = None


async def respond(request: Request, work: Callable[[Ask], Awaitable[bytes]]) -> Response:
    """Answer over HTTP, after its body was read; the client's hanging up ends the work."""
    app = app_of(request)
    target_ms = slo_ms(request.headers.get(SLO_HEADER))
    with (
        Inquiry(app.jobs, app.clock.now_ns()) as inquiry,
        watched(request.receive, inquiry.abandon),
    ):
        return Json(await work(Ask(app, inquiry, target_ms)))


async def run_texts(
    ask: Ask, model: OneshotModel, body: OneshotBody, texts: Sequence[Text], query: str | None
) -> Results:
    """What the model makes of texts, or of pairs of a query and each text.

    Raises:
        SymphonyError: an input cannot be served, or the house cannot serve it in time.
        ClientGone: the client hung up.
    """
    field = "documents" if query is not None else "input"
    tokenizer = model.processor
    if not isinstance(tokenizer, ModelTokenizer):
        raise InvalidRequest(f"{field}: this model takes images", field)
    limit, cut_to = _limits(model, body)
    special = body.add_special_tokens is not False
    if query is not None:
        _check_chars(query, "query", limit)
        _check_tokens(tokenizer.encode_now(query, special=False), "query", limit, tokenizer)
    jobs: list[NewJob] = []
    num_tokens = 0
    for start in range(0, len(texts), CHUNK_INPUTS):
        some = texts[start : start + CHUNK_INPUTS]
        if cut_to is not None:
            some = [text[: cut_to * CHARS_PER_TOKEN_MAX] for text in some]
        for at, text in enumerate(some, start):
            _check_chars(text, f"{field}[{at}]", limit)
        inputs = await _tokenize(tokenizer, some, query, special, cut_to)
        num_bytes = sum(6 * (len(i.tokens) + len(i.segments)) + ENTRY_BYTES for i in inputs)
        ask.inquiry.take(len(inputs), num_bytes)
        for at, given in enumerate(inputs, start):
            _check_tokens(given.tokens, f"{field}[{at}]", limit, tokenizer)
            num_tokens += len(given.tokens)
            made = JobInput(
                job_id=_job_id(ask, at),
                tokens=pack_ints(given.tokens),
                segments=pack_ints(given.segments) if given.segments else "",
            )
            jobs.append(NewJob(variant=_variant(model, len(given.tokens)), input=made))
    return Results(await _run(ask, model, body, jobs), num_tokens)


async def run_images(
    ask: Ask, model: OneshotModel, body: OneshotBody, urls: Sequence[str]
) -> Results:
    """What the model makes of images.

    Raises: as `run_texts`.
    """
    processor, config = model.processor, ask.app.config
    assert isinstance(processor, ImageProcessor)
    ask.inquiry.take(len(urls), len(urls) * (processor.num_bytes + ENTRY_BYTES))
    variant = _variant(model, 0)

    def decode(at: int) -> NewJob:
        try:
            data = data_url_bytes(urls[at], config.image_bytes_max)
            pixels = processor.decode(data, config.image_pixels_max)
        except InvalidRequest as error:
            raise InvalidRequest(f"input[{at}]: {error.message}", f"input[{at}]") from None
        made = JobInput(
            job_id=_job_id(ask, at), pixels=pixels.data, height=pixels.height, width=pixels.width
        )
        return NewJob(variant=variant, input=made)

    loop = asyncio.get_running_loop()
    jobs = await asyncio.gather(
        *[loop.run_in_executor(THREADS, decode, at) for at in range(len(urls))]
    )
    return Results(await _run(ask, model, body, jobs), 0)


def unpack_values(packed: str, num_values: int) -> Values:
    """Float32 [num_values] from the wire.

    Raises:
        SymphonyError: not base64, or of another length.
    """
    try:
        values = np.frombuffer(base64.b64decode(packed, validate=True), dtype="<f4")
    except ValueError as error:
        raise SymphonyError(f"the worker's result: {error}") from None
    if len(values) != num_values:
        raise SymphonyError(f"the worker sent {len(values)} values, not {num_values}")
    return values


def dumps(answer: dict[str, Any]) -> bytes:
    """JSON of an answer whose numbers may be arrays."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def usage(num_tokens: int) -> dict[str, int]:
    """Token counts in OpenAI's shape."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def _run(
    ask: Ask, model: OneshotModel, body: OneshotBody, jobs: Sequence[NewJob]
) -> list[str]:
    card = model.card
    fastest_ns = max(_fastest_ns(model, job.variant) for job in jobs)
    target_ns = _target_ns(ask, model, body, fastest_ns)
    new = NewRequest(
        request_id=ask.inquiry.request_id,
        model_id=card.model_id,
        fingerprint=card.fingerprint,
        shard=shard_of(card.model_id, ask.app.config.scheduler_shards),
        jobs=jobs,
        arrived_at_ns=ask.inquiry.arrived_at_ns,
        deadline_at_ns=ask.inquiry.arrived_at_ns + target_ns,
        fastest_ns=fastest_ns,
    )
    return (await ask.inquiry.run(new)).values


def _target_ns(ask: Ask, model: OneshotModel, body: OneshotBody, fastest_ns: int) -> int:
    """The header's target, else the body's, else the model's own.

    Raises:
        InvalidRequest: not even a batch of one could meet it.
    """
    name, whose = SLO_HEADER, ""
    if ask.header_slo_ms is not None:
        target_ms = ask.header_slo_ms
    elif body.slo_ms is not None:
        target_ms, name = body.slo_ms, "slo_ms"
    else:
        target_ms, whose = model.card.slo_ms, " (the model's default)"
    target_ns = int(target_ms * 1e6)
    if target_ns < fastest_ns:
        raise InvalidRequest(
            f"{name}: {target_ms:g} ms{whose} is less than the fastest batch of "
            f"`{model.card.model_id}` takes, {fastest_ns / 1e6:.3g} ms",
            name,
            code="slo_too_short",
        )
    return target_ns


def _limits(model: OneshotModel, body: OneshotBody) -> tuple[int, int | None]:
    """Most tokens of an input, and what longer texts are cut to, if they are."""
    limit = max(variant.variant for variant in model.card.variants)
    if limit == 0 or any(variant.variant == 0 for variant in model.card.variants):
        limit = TOKENS_MAX
    cut_to = body.truncate_prompt_tokens
    if cut_to == -1:
        return limit, limit
    if cut_to is not None and not 1 <= cut_to <= limit:
        raise InvalidRequest(
            f"truncate_prompt_tokens: give -1, or 1 to {limit}", "truncate_prompt_tokens"
        )
    return limit, cut_to


def _variant(model: OneshotModel, num_tokens: int) -> int:
    """The smallest variant that holds an input; 0 holds any."""
    sizes = [variant.variant for variant in model.card.variants]
    return min((size for size in sizes if size >= num_tokens), default=0)


def _fastest_ns(model: OneshotModel, size: int) -> int:
    """Run time of a batch of one."""
    return next(v.batch_ns[0] for v in model.card.variants if v.variant == size)


def _job_id(ask: Ask, at: int) -> JobId:
    return JobId(f"{ask.inquiry.request_id}-{at}")


def _check_chars(text: Text, where: str, limit: int) -> None:
    if len(text) > limit * CHARS_PER_TOKEN_MAX:
        raise _too_long(f"{len(text)} characters", where, limit)


def _check_tokens(tokens: list[int], where: str, limit: int, tokenizer: ModelTokenizer) -> None:
    if not tokens:
        raise InvalidRequest(f"{where}: it has no tokens", where)
    if len(tokens) > limit:
        raise _too_long(f"{len(tokens)} tokens", where, limit)
    if max(tokens) >= tokenizer.vocab_size:
        raise InvalidRequest(f"{where}: a token is outside the vocabulary", where)


def _too_long(length: str, where: str, limit: int) -> InvalidRequest:
    advice = "" if where == "query" else "; truncate_prompt_tokens = -1 cuts it"
    return InvalidRequest(
        f"{where}: it has {length}, and the model takes at most {limit} tokens{advice}",
        where,
        code="context_length_exceeded",
    )


async def _tokenize(
    tokenizer: ModelTokenizer,
    texts: Sequence[Text],
    query: str | None,
    special: bool,
    cut_to: int | None,
) -> list[ModelInput]:
    """Inputs of a chunk. What came as tokens is taken as it is, but cut."""

    def work() -> list[ModelInput]:
        words = [text for text in texts if isinstance(text, str)]
        made = iter(tokenizer.encode_inputs(words, query, special=special, cut_to=cut_to))
        return [
            next(made) if isinstance(text, str) else ModelInput(text[:cut_to], []) for text in texts
        ]

    cost = sum(len(text) + INPUT_CHARS for text in texts) + len(query or "")
    return await asyncio.to_thread(work) if cost > INLINE_CHARS_MAX else work()
