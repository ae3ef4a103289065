"""Texts as inputs of a one-shot model: tokenized in chunks, in threads if they are long."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from services.frontend.api.oneshot_bodies import OneshotBody, Text
from services.frontend.api.oneshot_inputs import (
    ENTRY_BYTES,
    Ask,
    Preparation,
    job_id_of,
    variant_of,
)
from services.frontend.core.job_events import NewJob
from services.frontend.models import OneshotModel
from services.frontend.tokenizer import INLINE_CHARS_MAX, ModelInput, ModelTokenizer, Query
from shared.errors import InvalidRequest
from shared.messages import JobInput, pack_ints

CHUNK_INPUTS = 64  # tokenized at once
CHUNK_CHARS_MAX = 200_000  # of them, about 50 ms of tokenizing, unless one alone has more
INPUT_CHARS = 50  # of text that cost about as much as an input's overhead
TOKENS_MAX = 131_072  # of one input, if its model names no limit
CHARS_PER_TOKEN_MAX = 100  # a text with more is not tokenized only to learn how long it is

Made = TypeVar("Made")


async def text_jobs(
    preparation: Preparation,
    model: OneshotModel,
    body: OneshotBody,
    texts: Sequence[Text],
    query: str | None,
) -> tuple[list[NewJob], int]:
    """Jobs of texts, or of pairs of a query and each text, and how many tokens they have.

    Raises:
        InvalidRequest: an input cannot be served.
        NoCapacity: too many inputs are held already, or it is too late for these.
        ClientGone: the client hung up.
    """
    work = _texts(preparation, model, body, texts, query)
    costs = [len(text) + INPUT_CHARS + len(query or "") for text in work.texts]
    is_inline = sum(costs) + len(query or "") <= INLINE_CHARS_MAX

    async def step(do: Callable[[], Made]) -> Made:
        def unless_over() -> Made | None:
            return do() if preparation.is_wanted() else None

        made = unless_over() if is_inline else await asyncio.to_thread(unless_over)
        if made is None:
            raise preparation.ended()
        return made

    first = None if query is None else await step(partial(work.encode_query, query))
    jobs: list[NewJob] = []
    num_tokens = 0
    for some in chunks(costs):
        made = await step(partial(work.encode, some, first))
        num_bytes = sum(len(i.input.tokens) + len(i.input.segments) + ENTRY_BYTES for i, _ in made)
        preparation.ask.inquiry.take(len(made), num_bytes)
        jobs += [job for job, _ in made]
        num_tokens += sum(num for _, num in made)
    return jobs, num_tokens


def chunks(costs: Sequence[int]) -> Iterator[range]:
    """Which inputs to tokenize at once, given what each costs in characters."""
    start, cost_so_far = 0, 0
    for at, cost in enumerate(costs):
        is_full = at - start >= CHUNK_INPUTS or cost_so_far + cost > CHUNK_CHARS_MAX
        if is_full and at > start:
            yield range(start, at)
            start, cost_so_far = at, 0
        cost_so_far += cost
    if costs:
        yield range(start, len(costs))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Texts:
    """Texts to tokenize, and how.

    Attributes:
        field: of the body, to name in errors.
        limit: most tokens of an input.
        cut_to: what longer texts are cut to; None: they are refused.
    """

    ask: Ask
    model: OneshotModel
    tokenizer: ModelTokenizer
    texts: Sequence[Text]
    field: str
    limit: int
    cut_to: int | None
    special: bool

    def encode_query(self, text: str) -> Query:
        """Blocks."""
        query = self.tokenizer.encode_query(text)
        _check_tokens(query.tokens, "query", self.limit, self.tokenizer)
        return query

    def encode(self, some: range, query: Query | None) -> list[tuple[NewJob, int]]:
        """Jobs of some of the texts, and their numbers of tokens. Blocks. What came as tokens is
        taken as it is, but cut.
        """
        words = [text for at in some if isinstance(text := self.texts[at], str)]
        encoded = iter(
            self.tokenizer.encode_inputs(words, query, special=self.special, cut_to=self.cut_to)
        )
        jobs = []
        for at in some:
            text = self.texts[at]
            given = next(encoded) if isinstance(text, str) else ModelInput(text[: self.cut_to], [])
            _check_tokens(given.tokens, f"{self.field}[{at}]", self.limit, self.tokenizer)
            num_tokens = len(given.tokens)
            made = JobInput(
                job_id=job_id_of(self.ask, at),
                tokens=pack_ints(given.tokens),
                segments=pack_ints(given.segments) if given.segments else "",
            )
            job = NewJob(variant=variant_of(self.model, num_tokens), input=made)
            jobs.append((job, num_tokens))
        return jobs


def _texts(
    preparation: Preparation,
    model: OneshotModel,
    body: OneshotBody,
    texts: Sequence[Text],
    query: str | None,
) -> _Texts:
    """Raises:
    InvalidRequest: the model takes no texts, or one is longer than any that it takes.
    """
    field = "documents" if query is not None else "input"
    tokenizer = model.processor
    if not isinstance(tokenizer, ModelTokenizer):
        raise InvalidRequest(f"{field}: this model takes images", field)
    limit, cut_to = _limits(model, body)
    if query is not None:
        _check_chars(query, "query", limit)
    if cut_to is not None:
        chars_max = cut_to * CHARS_PER_TOKEN_MAX
        texts = [text if len(text) <= chars_max else text[:chars_max] for text in texts]
    for at, text in enumerate(texts):
        _check_chars(text, f"{field}[{at}]", limit)
    return _Texts(
        ask=preparation.ask, model=model, tokenizer=tokenizer, texts=texts, field=field,
        limit=limit, cut_to=cut_to, special=body.add_special_tokens is not False,
    )  # fmt: skip


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
