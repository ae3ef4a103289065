"""``POST /v1/completions``."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import (
    PROMPTS_MAX,
    CompletionBody,
    check_options,
    parse,
    token_list,
)
from services.frontend.api.delivery import respond
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.generation import Generation
from services.frontend.api.logprobs import completion_block
from services.frontend.api.planning import fitting_text, generation_of, owner_of, text_rules
from services.frontend.api.prompts import Owner, TokenizedPrompt, take_tokens, tokenize_text
from services.frontend.api.schemas import COMPLETION
from services.frontend.api.writing import Frame
from services.frontend.app import App, app_of
from services.frontend.core.choice import Piece
from services.frontend.core.room import FREE_BODY_BYTES, Hold
from services.frontend.models import ServedModel
from services.frontend.request import Origin, caller_of, origin_of, read_body
from shared.errors import InvalidRequest
from shared.messages import TokenLogprobs

CHOICES_MAX = 1024
MAX_TOKENS_DEFAULT = 16  # OpenAI's, for this endpoint

router = APIRouter(tags=["text"])


@router.post(
    "/v1/completions",
    responses=streams("text_completion", COMPLETION),
    openapi_extra=takes(CompletionBody, *TURN_HEADERS),
)
async def completions(request: Request) -> Response:
    """What follows a prompt."""
    app = app_of(request)
    with Hold(app.room_of(caller_of(request).tenant), FREE_BODY_BYTES) as hold:
        body = parse(CompletionBody, await read_body(request, hold.grow_to))
        writer = await prepare_completion(app, body, origin_of(request))
        writer.generation.keep(hold)
        return await respond(request, writer, stream=bool(body.stream))


async def prepare_completion(app: App, body: CompletionBody, origin: Origin) -> "CompletionWriter":
    """Check and tokenize a completion.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    app.quotas.check_turns(origin.tenant)
    check_options(body)
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens: 0 only with echo", "max_tokens")
    model = app.models.get(body.model)
    prompts = await _prompts(app, model, owner_of(body, origin), body)
    generation = await generation_of(
        app, model, body, origin, prompts,
        text_rules(body, discard=body.max_tokens == 0),  # without room the reply is not looked at
        asked=body.max_tokens,
        default=app.config.max_tokens_default or MAX_TOKENS_DEFAULT,
    )  # fmt: skip
    echoes = []
    if body.echo:
        for prompt in generation.plan.prompts:
            echoes.append(await app.texts.echo(model.tokenizer, prompt.tokens))
            await asyncio.sleep(0)  # a request may have a thousand short ones
    return CompletionWriter(generation, body, int(app.clock.wall_ns() // 1_000_000_000), echoes)


async def _prompts(
    app: App, model: ServedModel, owner: Owner, body: CompletionBody
) -> list[TokenizedPrompt]:
    """The field `prompt`: a string, a list of strings, tokens, or a list of those."""
    given = body.prompt
    many = [given] if isinstance(given, str) or token_list(given) else given
    if not isinstance(many, list) or not many:
        raise InvalidRequest("prompt: give text, tokens, or a list of either", "prompt")
    if len(many) > PROMPTS_MAX or len(many) * (body.n or 1) > CHOICES_MAX:
        raise InvalidRequest(f"prompt: more than {CHOICES_MAX} choices in one request", "prompt")
    special = body.add_special_tokens is not False
    is_cut = body.truncate_prompt_tokens is not None
    vocab_size = model.vocab_size
    prompts = []
    for item in many:
        await asyncio.sleep(0)  # a thousand prompts, each of them short, are long
        if isinstance(item, str):
            text = fitting_text(model, body, item, body.max_tokens)
            prompt = await tokenize_text(app, model, owner, text, special=special, is_cut=is_cut)
        elif (tokens := token_list(item)) is not None:
            if max(tokens, default=0) >= vocab_size:
                raise InvalidRequest("prompt: a token is outside the vocabulary", "prompt")
            is_kept = owner.session_id is not None
            text = await app.texts.decode_all(model.tokenizer, tokens) if is_kept else ""
            prompt = await take_tokens(app, model, owner, tokens, text)
        else:
            raise InvalidRequest("prompt: give text, tokens, or a list of either", "prompt")
        if not prompt.tokens:
            raise InvalidRequest("prompt: it is empty", "prompt")
        prompts.append(prompt)
    return prompts


class CompletionWriter:
    """A completion's pieces as OpenAI writes them.

    Args:
        echoes: each prompt's text and where its tokens start in it, if they are to be shown.
    """

    def __init__(
        self,
        generation: Generation,
        body: CompletionBody,
        created: int,
        echoes: list[tuple[str, list[int]]],
    ) -> None:
        self.generation = generation
        self._echoes = echoes
        self._frame = Frame(generation, body, created, prefix="cmpl", kind="text_completion")
        self._num_top = body.logprobs
        num = len(generation.choices)
        self._texts: list[list[str]] = [[] for _ in range(num)]
        self._entries: list[list[tuple[TokenLogprobs, int]]] = [[] for _ in range(num)]
        self._has_begun = [False] * num
        self._prompt_chars = [0] * num

    def num_entries(self, piece: Piece | None) -> int:
        if piece is None:
            return sum(map(len, self._entries))
        num_echoed = len(self._prompt_entries(piece.index)) if self._is_echo_due(piece) else 0
        return num_echoed + len(piece.logprobs)

    def chunks(self, piece: Piece) -> list[bytes]:
        shows_prompt = self._frame.wants_token_ids and not self._has_begun[piece.index]
        text, entries = self._with_echo(piece)
        tokens = piece.tokens if self._frame.wants_token_ids else ()
        if not (text or entries or tokens or shows_prompt or piece.finish is not None):
            return []
        choice: dict[str, Any] = {
            "index": piece.index,
            "text": text,
            "logprobs": self._logprobs(entries),
            "finish_reason": piece.finish,
        }
        if self._frame.wants_token_ids:
            choice["token_ids"] = list(tokens)
            if shows_prompt:
                choice["prompt_token_ids"] = self.generation.prompt_of(piece.index).tokens
        return [self._frame.chunk(orjson.dumps(choice))]

    def usage_chunk(self) -> bytes | None:
        return self._frame.usage_chunk()

    def add(self, piece: Piece) -> None:
        self._frame.add(piece)
        text, entries = self._with_echo(piece)
        self._texts[piece.index].append(text)
        self._entries[piece.index] += entries

    def whole(self) -> bytes:
        return self._frame.whole([self._choice(index) for index in range(len(self._texts))])

    def _choice(self, index: int) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": "".join(self._texts[index]),
            "logprobs": self._logprobs(self._entries[index]),
            "finish_reason": self.generation.choices[index].finish,
        }
        if self._frame.wants_token_ids:
            choice["token_ids"] = self._frame.tokens[index]
            choice["prompt_token_ids"] = self.generation.prompt_of(index).tokens
        return choice

    def _logprobs(self, entries: list[tuple[TokenLogprobs, int]]) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        return completion_block(self._frame.name, entries, self._num_top)

    def _with_echo(self, piece: Piece) -> tuple[str, list[tuple[TokenLogprobs, int]]]:
        """The piece's text and log-probabilities, behind the prompt's if this is the first."""
        index = piece.index
        text = ""
        entries: list[tuple[TokenLogprobs, int]] = []
        if self._is_echo_due(piece):
            text, entries = self._prompt(index)
            self._prompt_chars[index] = len(text)
        self._has_begun[index] = True
        shift = self._prompt_chars[index]
        return text + piece.text, entries + [(e, shift + start) for e, start in piece.logprobs]

    def _prompt(self, index: int) -> tuple[str, list[tuple[TokenLogprobs, int]]]:
        text, starts = self._echoes[index // self.generation.plan.n]
        return text, list(zip(self._prompt_entries(index), starts, strict=False))

    def _is_echo_due(self, piece: Piece) -> bool:
        return bool(self._echoes) and not self._has_begun[piece.index]

    def _prompt_entries(self, index: int) -> list[TokenLogprobs]:
        return self.generation.choices[index].prompt_logprobs or []
