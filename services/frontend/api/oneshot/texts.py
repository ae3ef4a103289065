"""Texts as inputs of a one-shot model: tokenized in chunks, in threads if they are long."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from services.frontend.api.bodies.oneshot import Inputs, Text
from services.frontend.api.oneshot.inputs import (
    ENTRY_BYTES,
    Context,
    Preparation,
    job_id_of,
    variant_of,
)
from services.frontend.core.turns.job_events import NewJob
from services.frontend.models.registry import OneshotModel
from services.frontend.rendering.tokenizer import (
    INLINE_CHARS_MAX,
    Cut,
    ModelInput,
    ModelTokenizer,
    Query,
)
from shared.errors import InvalidRequest
from shared.wire.messages import JobInput, pack_ints

CHUNK_INPUTS = 64  # tokenized at once
CHUNK_CHARS_MAX = 200_000  # of them, about 50 ms of tokenizing, unless one alone has more
INPUT_CHARS = 50  # of text that cost about as much as an input's overhead
TOKENS_MAX = 131_072  # of one input, if its model names no limit

Made = TypeVar("Made")


async def text_jobs(
    preparation: Preparation, model: OneshotModel, inputs: Inputs
) -> tuple[list[NewJob], int]:
    """Jobs of texts, or of pairs, and how many tokens they have.

    Raises:
        InvalidRequest: an input cannot be served.
        NoCapacity: too many inputs are held already, or it is too late for these.
        ClientGone: the client hung up.
    """
    work = _texts(preparation, model, inputs)
    costs = work.costs()
    is_inline = sum(costs) + sum(map(len, inputs.queries)) <= INLINE_CHARS_MAX

    async def step(do: Callable[[], Made]) -> Made:
        def unless_over() -> Made | None:
            return do() if preparation.is_wanted() else None

        workers = preparation.context.app.gates.inputs
        made = unless_over() if is_inline else await preparation.in_thread(workers, unless_over)
        if made is None:
            raise preparation.ended()
        return made

    first = await step(partial(work.encode_query, 0)) if len(inputs.queries) == 1 else None
    jobs: list[NewJob] = []
    num_tokens = 0
    for some in chunks(costs):
        made = await step(partial(work.encode, some, first))
        num_bytes = sum(len(i.input.tokens) + len(i.input.segments) + ENTRY_BYTES for i, _ in made)
        preparation.context.pending.take(len(made), num_bytes)
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
        texts: without what a cut leaves out anyway.
        limit: most tokens of an input.
        cut: what longer texts are cut to.
    """

    context: Context
    model: OneshotModel
    tokenizer: ModelTokenizer
    given: Inputs
    texts: list[Text]
    limit: int
    cut: Cut

    def costs(self) -> list[int]:
        """Characters to tokenize for each text."""
        queries = self.given.queries
        if len(queries) == 1:
            queries = queries * len(self.texts)
        with_query = zip_longest(self.texts, queries, fillvalue="")
        return [len(text) + INPUT_CHARS + len(query) for text, query in with_query]

    def encode_query(self, at: int) -> Query:
        """Blocks."""
        query = self.tokenizer.encode_query(self.given.queries[at])
        name = self.given.query_names[at]
        _check_tokens(query.tokens, name, self.limit, self.tokenizer, is_query=True)
        return query

    def encode(self, some: range, query: Query | None) -> list[tuple[NewJob, int]]:
        """Jobs of some of the texts, and their numbers of tokens. Blocks.

        Args:
            query: the one that all texts share, if they do.
        """
        if len(self.given.queries) <= 1:
            return self._encode(some, query)
        pairs = ((at, self.encode_query(at)) for at in some)
        return [made for at, own in pairs for made in self._encode(range(at, at + 1), own)]

    def _encode(self, some: range, query: Query | None) -> list[tuple[NewJob, int]]:
        """What came as tokens is taken as it is, but cut."""
        words = [text for at in some if isinstance(text := self.texts[at], str)]
        special = self.given.special
        encoded = iter(self.tokenizer.encode_inputs(words, query, special=special, cut=self.cut))
        jobs = []
        for at in some:
            text = self.texts[at]
            given = next(encoded) if isinstance(text, str) else ModelInput(self.cut.of(text), [])
            _check_tokens(given.tokens, self.given.names[at], self.limit, self.tokenizer)
            num_tokens = len(given.tokens)
            made = JobInput(
                job_id=job_id_of(self.context, at),
                tokens=pack_ints(given.tokens),
                segments=pack_ints(given.segments) if given.segments else "",
            )
            job = NewJob(variant=variant_of(self.model, num_tokens), input=made)
            jobs.append((job, num_tokens))
        return jobs


def _texts(preparation: Preparation, model: OneshotModel, inputs: Inputs) -> _Texts:
    """Raises:
    InvalidRequest: the model takes no texts, or one is longer than any that it takes.
    """
    tokenizer = model.processor
    if not isinstance(tokenizer, ModelTokenizer):
        field = inputs.names[0].partition("[")[0]
        raise InvalidRequest(f"{field}: this model takes images", field)
    limit, cut = _limits(model, inputs)
    chars_per_token = tokenizer.chars_per_token_max
    for query, name in zip(inputs.queries, inputs.query_names, strict=True):
        _check_chars(query, name, limit, chars_per_token, is_query=True)
    texts = inputs.texts
    if (longest := cut.longest) is not None:
        # Only what can be kept is worth tokenizing.
        texts = [cut.side_of(text, longest * chars_per_token) for text in texts]
    for text, name in zip(texts, inputs.names, strict=True):
        _check_chars(text, name, limit, chars_per_token)
    return _Texts(
        context=preparation.context, model=model, tokenizer=tokenizer, given=inputs, texts=texts,
        limit=limit, cut=cut,
    )  # fmt: skip


def _limits(model: OneshotModel, inputs: Inputs) -> tuple[int, Cut]:
    """Most tokens of an input, and what longer texts are cut to."""
    limit = max(variant.variant for variant in model.card.variants)
    if limit == 0 or any(variant.variant == 0 for variant in model.card.variants):
        limit = TOKENS_MAX
    cut_to = limit if inputs.cut_to == -1 else inputs.cut_to
    if cut_to is not None and not 1 <= cut_to <= limit:
        raise InvalidRequest(
            f"truncate_prompt_tokens: give -1, or 1 to {limit}", "truncate_prompt_tokens"
        )
    return limit, Cut(cut_to, inputs.document_tokens_max, inputs.keep_end)


def _check_chars(
    text: Text, where: str, limit: int, chars_per_token: int, *, is_query: bool = False
) -> None:
    """A text with more characters is not tokenized only to learn how long it is."""
    if len(text) > limit * chars_per_token:
        raise _too_long(f"{len(text)} characters", where, limit, is_query)


def _check_tokens(
    tokens: list[int], where: str, limit: int, tokenizer: ModelTokenizer, *, is_query: bool = False
) -> None:
    if not tokens:
        raise InvalidRequest(f"{where}: it has no tokens", where)
    if len(tokens) > limit:
        raise _too_long(f"{len(tokens)} tokens", where, limit, is_query)
    if max(tokens) >= tokenizer.vocab_size:
        raise InvalidRequest(f"{where}: a token is outside the vocabulary", where)


def _too_long(length: str, where: str, limit: int, is_query: bool) -> InvalidRequest:
    advice = "" if is_query else "; truncate_prompt_tokens = -1 cuts it"
    return InvalidRequest(
        f"{where}: it has {length}, and the model takes at most {limit} tokens{advice}",
        where,
        code="context_length_exceeded",
    )
