"""Bodies of requests to one-shot models, and what their inputs may be."""

from typing import Annotated, Any, Literal

from pydantic import Field

from services.frontend.api.bodies import Body, Finite, Id
from shared.errors import InvalidRequest
from shared.messages import SLO_MS_MAX

Text = str | list[int]


class OneshotBody(Body):
    """What all of them share."""

    model: Id
    slo_ms: Annotated[Finite, Field(gt=0, le=SLO_MS_MAX)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    add_special_tokens: bool | None = None


class EmbeddingBody(OneshotBody):
    """``POST /v1/embeddings``."""

    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class ClassifyBody(OneshotBody):
    """``POST /v1/classify``."""

    input: Any


class RerankBody(OneshotBody):
    """``POST /v1/rerank``."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[Any], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None


def texts_of(given: Any, num_max: int) -> list[Text]:
    """The field `input` for a model that reads text: text, tokens, or a list of either.

    Raises:
        InvalidRequest: something else, an empty one, or too many.
    """
    is_single = isinstance(given, str) or (
        isinstance(given, list) and bool(given) and all(_is_token(item) for item in given)
    )
    many = [given] if is_single else given
    if not isinstance(many, list) or not many:
        raise InvalidRequest("input: give text, tokens, or a list of either", "input")
    check_number(many, "input", num_max)
    for at, item in enumerate(many):
        where = "input" if is_single else f"input[{at}]"
        if not isinstance(item, str) and not (
            isinstance(item, list) and all(_is_token(token) for token in item)
        ):
            raise InvalidRequest(f"{where}: give text or tokens", where)
        if not item:
            raise InvalidRequest(f"{where}: it is empty", where)
    return many


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


def documents_of(body: RerankBody, num_max: int) -> list[str]:
    """The texts of the field `documents`.

    Raises:
        InvalidRequest: one is no text, or empty, or they are too many.
    """
    check_number(body.documents, "documents", num_max)
    texts = []
    for at, document in enumerate(body.documents):
        text = document.get("text") if isinstance(document, dict) else document
        where = f"documents[{at}]"
        if not isinstance(text, str):
            raise InvalidRequest(f'{where}: give a string or {{"text": ...}}', where)
        if not text:
            raise InvalidRequest(f"{where}: it is empty", where)
        texts.append(text)
    return texts


def check_number(many: list[Any], name: str, num_max: int) -> None:
    """Raises:
    InvalidRequest: more than `num_max`.
    """
    if len(many) > num_max:
        raise InvalidRequest(f"{name}: at most {num_max} in one request, not {len(many)}", name)


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31
