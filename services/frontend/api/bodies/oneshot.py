"""Bodies of requests to one-shot models, and what their inputs may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, WithJsonSchema

from services.frontend.api.bodies.base import (
    WHOLE,
    Body,
    Cut,
    Endpoint,
    Finite,
    Id,
    Note,
    token_list,
)
from services.frontend.api.bodies.schemas import (
    DOCUMENT,
    IMAGE,
    STRINGS,
    TEXTS_OR_TOKENS,
    Schema,
    any_of,
    array,
    nullable,
    one_group,
)
from services.frontend.api.bodies.text import SIDE_NOTE
from shared.errors import InvalidRequest
from shared.wire.messages import SLO_MS_MAX

SCORE_PAIRS = (
    ("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"),
)  # fmt: skip
Text = str | list[int]
Size = Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE]
Input = Annotated[Any, WithJsonSchema(any_of(TEXTS_OR_TOKENS, IMAGE, array(IMAGE, 1)))]
Types = Annotated[
    list[str],
    Field(min_length=1, fail_fast=True),
    WithJsonSchema(array({"enum": ["float", "base64"]}, 1)),
]
Strings = Annotated[Any, WithJsonSchema(nullable(STRINGS))]


class OneshotBody(Body):
    """What all of them share."""

    model: Id
    slo_ms: Annotated[Finite, Field(gt=0, le=SLO_MS_MAX)] | None = None


class EncodedBody(OneshotBody):
    """How texts become tokens."""

    truncate_prompt_tokens: Annotated[
        Cut | None, Note("the start is kept; truncation_side says otherwise")
    ] = None
    truncation_side: Annotated[Any, SIDE_NOTE] = None
    add_special_tokens: bool | None = None


class VectorBody(EncodedBody):
    """How vectors are written; see `vectors`."""

    input: Input
    encoding_format: Annotated[Any, Note(values=("float", "base64"))] = None
    embed_dtype: Annotated[Any, Note("of base64", ("float32", "float16", "bfloat16"))] = None
    endianness: Annotated[Any, Note("of base64", ("native", "little", "big"))] = None
    dimensions: Size | None = None
    normalize: Annotated[bool | None, Note("scales to length 1", (True,))] = None
    use_activation: Annotated[bool | None, Note("scales to length 1", (True,))] = None


class EmbeddingBody(VectorBody):
    """``POST /v1/embeddings``."""

    endpoint: ClassVar[Endpoint] = "embeddings"
    input: Annotated[Any, WithJsonSchema(TEXTS_OR_TOKENS)]


class PoolingBody(VectorBody):
    """``POST /pooling``."""

    endpoint: ClassVar[Endpoint] = "pooling"
    task: Annotated[Any, Note("the model's own", ("embed", "classify"))] = None


class CohereEmbedBody(OneshotBody):
    """``POST /v2/embed``, Cohere's."""

    endpoint: ClassVar[Endpoint] = "v2/embed"
    texts: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)]
    input_type: Annotated[
        Any,
        Note(
            "all the same: nothing is put before a text",
            ("search_document", "search_query", "classification", "clustering"),
        ),
    ] = None
    embedding_types: Annotated[Types | None, Note("float and base64")] = None
    truncate: Annotated[Any, Note(values=("NONE", "START", "END"))] = None
    output_dimension: Size | None = None


class ClassifyBody(EncodedBody):
    """``POST /v1/classify``."""

    endpoint: ClassVar[Endpoint] = "classify"
    input: Input


class RerankBody(EncodedBody):
    """``POST /v1/rerank``."""

    endpoint: ClassVar[Endpoint] = "rerank"
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[Any], Field(min_length=1), WithJsonSchema(array(DOCUMENT, 1))]
    top_n: Size | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Size | None = None


class ScoreBody(EncodedBody):
    """``POST /score``: one pair of fields of three that mean the same."""

    endpoint: ClassVar[Endpoint] = "score"
    rules: ClassVar[Schema] = one_group(*SCORE_PAIRS)
    text_1: Strings = None
    text_2: Strings = None
    queries: Strings = None
    documents: Strings = None
    items: Strings = None
    data_1: Strings = None
    data_2: Strings = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Texts, or pairs of a query and a text, and how to make tokens of them.

    Attributes:
        queries: none, one for all texts, or one a text.
        names: of the texts in errors.
        query_names: as many as queries.
        cut_to: tokens to keep of an input; -1: as many as the model takes.
        document_tokens_max: to keep of a text, special ones and the query not counted.
        keep_end: what is cut is cut at the start.
    """

    texts: list[Text]
    names: list[str]
    queries: list[str]
    query_names: list[str]
    cut_to: int | None = None
    document_tokens_max: int | None = None
    keep_end: bool = False
    special: bool = True


def inputs_of(
    body: EncodedBody,
    texts: list[Text],
    name: str,
    queries: list[str] | None = None,
    query_name: str = "query",
) -> Inputs:
    """Texts of a body's field `name`, cut as it asks for."""
    queries = queries or []
    return Inputs(
        texts=texts,
        names=names_of(name, texts),
        queries=queries,
        query_names=[query_name] if len(queries) == 1 else names_of(query_name, queries),
        cut_to=body.truncate_prompt_tokens,
        document_tokens_max=body.max_tokens_per_doc if isinstance(body, RerankBody) else None,
        keep_end=body.truncation_side == "left",
        special=body.add_special_tokens is not False,
    )


def names_of(field: str, values: Sequence[object]) -> list[str]:
    """What errors call the values of a field."""
    return [f"{field}[{at}]" for at in range(len(values))]


def texts_of(given: Any, num_max: int) -> list[Text]:
    """The field `input` for a model that reads text: text, tokens, or a list of either.

    Raises:
        InvalidRequest: something else, an empty one, or too many.
    """
    tokens = token_list(given)
    is_single = isinstance(given, str) or bool(tokens)
    many = [tokens or given] if is_single else given
    if not isinstance(many, list) or not many:
        raise InvalidRequest("input: give text, tokens, or a list of either", "input")
    check_number(many, "input", num_max)
    texts: list[Text] = []
    for at, item in enumerate(many):
        where = "input" if is_single else f"input[{at}]"
        text = item if isinstance(item, str) else token_list(item)
        if text is None:
            raise InvalidRequest(f"{where}: give text or tokens", where)
        if not text:
            raise InvalidRequest(f"{where}: it is empty", where)
        texts.append(text)
    return texts


def urls_of(given: Any, num_max: int) -> list[str]:
    """The field `input` for a model that sees images: one part or a list of parts ``{"type":
    "image_url", "image_url": {"url": ...}}``.

    Raises:
        InvalidRequest: something else, none, or too many.
    """
    parts = [given] if isinstance(given, dict) else given
    if not isinstance(parts, list) or not parts:
        raise InvalidRequest("input: this model takes image_url parts", "input")
    check_number(parts, "input", num_max)
    urls = []
    for at, part in enumerate(parts):
        holder = part.get("image_url") if isinstance(part, dict) else None
        url = holder.get("url") if isinstance(holder, dict) else holder
        if not isinstance(url, str) or part.get("type") != "image_url":
            raise InvalidRequest(
                f'input[{at}]: give {{"type": "image_url", "image_url": {{"url": "data:..."}}}}',
                f"input[{at}]",
            )
        urls.append(url)
    return urls


def documents_of(body: RerankBody, num_max: int) -> list[Text]:
    """The texts of the field `documents`.

    Raises:
        InvalidRequest: one is no text, or empty, or they are too many.
    """
    check_number(body.documents, "documents", num_max)
    texts: list[Text] = []
    for at, document in enumerate(body.documents):
        text = document.get("text") if isinstance(document, dict) else document
        where = f"documents[{at}]"
        if not isinstance(text, str):
            raise InvalidRequest(f'{where}: give a string or {{"text": ...}}', where)
        if not text:
            raise InvalidRequest(f"{where}: it is empty", where)
        texts.append(text)
    return texts


def strings_of(given: Any, name: str, num_max: int) -> list[str]:
    """A field that is a text or a list of texts.

    Raises:
        InvalidRequest: something else, an empty one, or too many.
    """
    many = [given] if isinstance(given, str) else given
    if not isinstance(many, list) or not many:
        raise InvalidRequest(f"{name}: give text or a list of texts", name)
    check_number(many, name, num_max)
    for at, text in enumerate(many):
        where = name if isinstance(given, str) else f"{name}[{at}]"
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}: give text", where)
        if not text:
            raise InvalidRequest(f"{where}: it is empty", where)
    return many


def check_number(many: list[Any], name: str, num_max: int) -> None:
    """Raises:
    InvalidRequest: more than `num_max`.
    """
    if len(many) > num_max:
        raise InvalidRequest(f"{name}: at most {num_max} in one request, not {len(many)}", name)
