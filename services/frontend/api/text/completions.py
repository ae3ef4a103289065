"""``POST /v1/completions``."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import (
    PROMPTS_MAX,
    CompletionBody,
    check_options,
    token_list,
)
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.schemas import COMPLETION
from services.frontend.api.text.delivery import respond
from services.frontend.api.text.generation import Generation
from services.frontend.api.text.logprobs import completion_block
from services.frontend.api.text.writing import ChoicesWriter
from services.frontend.app import App
from services.frontend.core.choice import Piece
from services.frontend.models import ServedModel
from services.frontend.prepare.grammar import held_to
from services.frontend.prepare.plan import fitting_text, generation_of, owner_of, text_rules
from services.frontend.prepare.tokenize import Owner, TokenizedPrompt, take_tokens, tokenize_text
from services.frontend.request import Origin
from shared.errors import InvalidRequest
from shared.messages import TokenLogprobs

CHOICES_MAX = 1024
MAX_TOKENS_DEFAULT = 16  # OpenAI's, for this endpoint

router = APIRouter(tags=["text"])


@router.post(
    "/v1/completions",
    responses=streams("`text_completion`, then `[DONE]`", COMPLETION),
    openapi_extra=takes(CompletionBody, *TURN_HEADERS),
)
async def completions(request: Request) -> Response:
    """What follows a prompt."""
    return await respond(request, CompletionBody, prepare_completion)


async def prepare_completion(app: App, body: CompletionBody, origin: Origin) -> "CompletionWriter":
    """Check and tokenize a completion.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    app.quotas.check_turns(origin.tenant)
    check_options(body)
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens: 0 only with echo", "max_tokens")
    model = await app.adapters.model(origin.tenant, body.model, body.adapter_id)
    held = await held_to(app, origin.tenant, body, model.tokenizer)
    prompts = await _prompts(app, model, owner_of(body, origin), body)
    generation = await generation_of(
        app, model, body, origin, prompts,
        text_rules(body, discard=body.max_tokens == 0),  # without room the reply is not looked at
        held=held,
        asked=body.max_tokens,
        default=app.config.max_tokens_default or MAX_TOKENS_DEFAULT,
    )  # fmt: skip
    echoes = []
    if body.echo:
        for prompt in generation.plan.prompts:
            echoes.append(await app.texts.echo(model.tokenizer, prompt.tokens))
            await asyncio.sleep(0)  # a request may have a thousand short ones
    return CompletionWriter(generation, body, echoes)


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


class CompletionWriter(ChoicesWriter):
    """A completion's pieces as OpenAI writes them.

    Args:
        echoes: each prompt's text and where its tokens start in it, if they are to be shown.
    """

    def __init__(
        self, generation: Generation, body: CompletionBody, echoes: list[tuple[str, list[int]]]
    ) -> None:
        super().__init__(generation, body, prefix="cmpl", kind="text_completion")
        self._echoes = echoes
        self._num_top = body.logprobs
        num = len(generation.choices)
        self._entries: list[list[tuple[TokenLogprobs, int]]] = [[] for _ in range(num)]
        self._has_begun = [False] * num
        self._prompt_chars = [0] * num

    def num_entries(self, piece: Piece | None) -> int:
        if piece is None:
            num_told = sum(map(len, self._entries))
            return num_told + self._num_prompt_entries(range(len(self._entries)))
        num_echoed = len(self._prompt_entries(piece.index)) if self._is_echo_due(piece) else 0
        return num_echoed + len(piece.logprobs)

    def chunks(self, piece: Piece) -> list[bytes]:
        self._num_told += len(piece.tokens)
        shows_prompt = self._wants_token_ids and not self._has_begun[piece.index]
        text, entries = self._with_echo(piece)
        tokens = piece.tokens if self._wants_token_ids else ()
        if not (text or entries or tokens or shows_prompt or piece.finish is not None):
            return []
        choice: dict[str, Any] = {
            "index": piece.index,
            "text": text,
            "logprobs": self._logprobs(entries),
            "finish_reason": piece.finish,
        }
        if self._wants_token_ids:
            choice["token_ids"] = list(tokens)
            if shows_prompt:
                choice["prompt_token_ids"] = self.generation.prompt_of(piece.index).tokens
        return [self._chunk(orjson.dumps(choice))]

    def add(self, piece: Piece) -> None:
        super().add(piece)
        text, entries = self._with_echo(piece)
        self._texts[piece.index].append(text)
        self._entries[piece.index] += entries

    def whole(self) -> bytes:
        choices = []
        for index, texts in enumerate(self._texts):
            logprobs = self._logprobs(self._entries[index])
            choice = self._whole_choice(index, logprobs, text="".join(texts))
            choice |= self._prompt_logprobs(index)
            if self._wants_token_ids:
                choice["prompt_token_ids"] = self.generation.prompt_of(index).tokens
            choices.append(choice)
        return self._whole(choices)

    def _logprobs(self, entries: list[tuple[TokenLogprobs, int]]) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        return completion_block(self._name, entries, self._num_top)

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
