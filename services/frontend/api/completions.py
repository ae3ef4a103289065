"""``POST /v1/completions``."""

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from services.frontend.api.bodies import (
    PROMPTS_MAX,
    CompletionBody,
    parse,
    refuse_unsupported,
    session_of,
    stop_strings,
)
from services.frontend.api.delivery import respond
from services.frontend.api.documents import TURN_HEADERS, streams, takes
from services.frontend.api.generation import Generation, Plan
from services.frontend.api.logprobs import completion_block
from services.frontend.api.prompts import Owner, TokenizedPrompt, given_tokens, tokenize_text
from services.frontend.api.sampling import max_new_tokens, sampling_params
from services.frontend.app import App, app_of
from services.frontend.core.choice import Piece, TextRules
from services.frontend.core.detokenizer import Detokenizer
from services.frontend.models import ServedModel
from services.frontend.request import Origin, origin_of, read_body
from shared.errors import InvalidRequest
from shared.ids import new_id
from shared.messages import TokenLogprobs

CHOICES_MAX = 1024
MAX_TOKENS_DEFAULT = 16  # OpenAI's, for this endpoint

router = APIRouter(tags=["text"])


@router.post(
    "/v1/completions",
    responses=streams("text_completion"),
    openapi_extra=takes(CompletionBody, *TURN_HEADERS),
)
async def completions(request: Request) -> Response:
    """What follows a prompt."""
    body = parse(CompletionBody, await read_body(request))
    writer = await prepare_completion(app_of(request), body, origin_of(request))
    return await respond(request, writer, stream=bool(body.stream))


async def prepare_completion(app: App, body: CompletionBody, origin: Origin) -> "CompletionWriter":
    """Check and tokenize a completion.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    refuse_unsupported(body)
    wanted = body.max_tokens != 0
    if not wanted and not body.echo:
        raise InvalidRequest("max_tokens: 0 only with echo", "max_tokens")
    model = app.models.get(body.model)
    owner = Owner(
        tenant=origin.tenant,
        session_id=session_of(body, origin),
        cache_salt=body.cache_salt or "",
    )
    prompts = await _prompts(app, model, owner, body)
    samplings = [
        sampling_params(
            body,
            max_tokens=max_new_tokens(
                body.max_tokens,
                app.config.max_tokens_default or MAX_TOKENS_DEFAULT,
                num_prompt=len(prompt.tokens),
                max_model_len=model.card.max_model_len,
                wanted=wanted,
            ),
            vocab_size=model.tokenizer.vocab_size,
        )
        for prompt in prompts
    ]
    plan = Plan(
        model=model,
        owner=owner,
        prompts=prompts,
        samplings=samplings,
        n=body.n or 1,
        rules=_rules(body),
        priority=body.priority or 0,
        show_special=body.skip_special_tokens is False,
        request_id=origin.request_id,
        slo_ttft_ms=origin.slo_ttft_ms,
    )
    return CompletionWriter(Generation(app, plan), body, int(app.clock.wall_ns() // 1_000_000_000))


def _rules(body: CompletionBody) -> TextRules:
    """How the reply becomes text; without room for any it is not looked at."""
    return TextRules(
        stop=stop_strings(body.stop),
        keep_stop=bool(body.include_stop_str_in_output),
        stop_token_ids=body.stop_token_ids or (),
        min_tokens=body.min_tokens or 0,
        discard=body.max_tokens == 0,
    )


async def _prompts(
    app: App, model: ServedModel, owner: Owner, body: CompletionBody
) -> list[TokenizedPrompt]:
    """The field `prompt`: a string, a list of strings, tokens, or a list of those."""
    given = body.prompt
    single = isinstance(given, str) or (
        isinstance(given, list) and bool(given) and all(_is_token(item) for item in given)
    )
    many = [given] if single else given
    if not isinstance(many, list) or not many:
        raise InvalidRequest("prompt: give text, tokens, or a list of either", "prompt")
    if len(many) > PROMPTS_MAX or len(many) * (body.n or 1) > CHOICES_MAX:
        raise InvalidRequest(f"prompt: more than {CHOICES_MAX} choices in one request", "prompt")
    special = body.add_special_tokens is not False
    vocab_size = model.tokenizer.vocab_size
    prompts = []
    for item in many:
        if isinstance(item, str):
            prompt = await tokenize_text(app, model, owner, item, special=special)
        elif isinstance(item, list) and all(_is_token(token) for token in item):
            if any(token >= vocab_size for token in item):
                raise InvalidRequest("prompt: a token is outside the vocabulary", "prompt")
            prompt = given_tokens(model, owner, item)
        else:
            raise InvalidRequest("prompt: give text, tokens, or a list of either", "prompt")
        if not prompt.tokens:
            raise InvalidRequest("prompt: it is empty", "prompt")
        prompts.append(prompt)
    return prompts


def _is_token(value: object) -> bool:
    return type(value) is int and value >= 0


class CompletionWriter:
    """A completion's pieces as OpenAI writes them."""

    def __init__(self, generation: Generation, body: CompletionBody, created: int) -> None:
        self.generation = generation
        self._id = new_id("cmpl")
        self._created = created
        self._model = body.model
        self._tokenizer = generation.plan.model.tokenizer
        self._num_top = body.logprobs
        options = body.stream_options
        self._wants_usage = bool(options is not None and options.include_usage)
        num = len(generation.choices)
        self._texts: list[list[str]] = [[] for _ in range(num)]
        self._entries: list[list[tuple[TokenLogprobs, int]]] = [[] for _ in range(num)]
        self._echo = bool(body.echo)
        self._echoed = [False] * num
        self._prompt_chars = [0] * num
        self._head = (
            b'{"id":"%b","object":"text_completion","created":%d,"model":%b,"choices":['
            % (self._id.encode(), created, orjson.dumps(self._model))
        )
        self._tail = b'}],"usage":null}' if self._wants_usage else b"}]}"

    def chunks(self, piece: Piece) -> list[bytes]:
        text, entries = self._with_echo(piece)
        if not text and not entries and piece.finish is None:
            return []
        logprobs = b"null"
        if self._num_top is not None:
            logprobs = orjson.dumps(completion_block(self._tokenizer, entries, self._num_top))
        finish = b"null" if piece.finish is None else b'"%b"' % piece.finish.encode()
        return [
            b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b%b'
            % (self._head, piece.index, orjson.dumps(text), logprobs, finish, self._tail)
        ]

    def usage_chunk(self) -> bytes | None:
        if not self._wants_usage:
            return None
        return self._head + b'],"usage":%b}' % orjson.dumps(self.generation.usage())

    def add(self, piece: Piece) -> None:
        text, entries = self._with_echo(piece)
        self._texts[piece.index].append(text)
        self._entries[piece.index] += entries

    def whole(self) -> bytes:
        return orjson.dumps(
            {
                "id": self._id,
                "object": "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": [self._choice(index) for index in range(len(self._texts))],
                "usage": self.generation.usage(),
            }
        )

    def _choice(self, index: int) -> dict[str, Any]:
        logprobs = None
        if self._num_top is not None:
            logprobs = completion_block(self._tokenizer, self._entries[index], self._num_top)
        return {
            "index": index,
            "text": "".join(self._texts[index]),
            "logprobs": logprobs,
            "finish_reason": self.generation.choices[index].finish,
        }

    def _with_echo(self, piece: Piece) -> tuple[str, list[tuple[TokenLogprobs, int]]]:
        """The piece's text and log-probabilities, behind the prompt's if this is the first."""
        index = piece.index
        text = ""
        entries: list[tuple[TokenLogprobs, int]] = []
        if self._echo and not self._echoed[index]:
            self._echoed[index] = True
            text, entries = self._prompt(index)
            self._prompt_chars[index] = len(text)
        shift = self._prompt_chars[index]
        return text + piece.text, entries + [(e, shift + start) for e, start in piece.logprobs]

    def _prompt(self, index: int) -> tuple[str, list[tuple[TokenLogprobs, int]]]:
        tokens = self.generation.prompt_of(index).tokens
        prompt = Detokenizer(self._tokenizer.decode_all)
        text = prompt.feed(tokens) + prompt.finish()
        entries = self.generation.choices[index].prompt_logprobs or []
        return text, list(zip(entries, prompt.starts, strict=False))
