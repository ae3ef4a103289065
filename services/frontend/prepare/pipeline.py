"""The one way from a request to what is generated. Each stage takes what the one before made:

```
body ──edge──▶ request ─▶ model ─▶ text ─▶ reading ─▶ grammar ─▶ tokens ─▶ plan ─▶ turns
      (api/)   requests    (App)  template  reading   grammar   fit,       plan    plan
                                                                tokenize
```

An edge makes a request of its body and writes what comes of it; it sees none of the stages, and
they see no body.
"""

import asyncio
from dataclasses import dataclass, replace

from services.frontend.app import App
from services.frontend.models.registry import ServedModel
from services.frontend.observability import telemetry
from services.frontend.prepare.grammar import held_to
from services.frontend.prepare.images import image_files, without_session
from services.frontend.prepare.plan import Plan, plan_of
from services.frontend.prepare.reading import Reading, reading_of
from services.frontend.prepare.requests import ChatRequest, CompletionRequest, GenerationRequest
from services.frontend.prepare.template import rendered
from services.frontend.prepare.tokenize import TokenizedPrompt, tokenized_ids, tokenized_text
from shared.errors import InvalidRequest

MAX_TOKENS_DEFAULT = 16  # OpenAI's, of completions


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """Attributes:
    reading: how replies are read.
    """

    plan: Plan
    reading: Reading


@dataclass(frozen=True, slots=True)
class PreparedCompletion:
    """Attributes:
    echoes: each prompt's text and where its tokens start in it, if they are to be shown.
    """

    plan: Plan
    echoes: list[tuple[str, list[int]]]


async def prepare_chat(app: App, request: ChatRequest) -> PreparedChat:
    """Render, constrain and tokenize a chat.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    asked = request.generation
    model = await _model(app, asked)
    images = image_files(request.conversation.images, model)
    if images:
        asked = without_session(asked)
    tokenizer = model.tokenizer
    text = await rendered(app.texts, tokenizer, request.conversation)
    reading = reading_of(request, tokenizer, app.config, text)
    held = await held_to(app.grammars, asked.owner.tenant, asked.structure, tokenizer, reading)
    prompt = replace(await tokenized_text(app, model, asked, text), images=images)
    _count_ignored(asked)
    plan = plan_of(
        asked, model, [prompt], held, app.quotas,
        default=app.config.max_tokens_default,
        show_special=any(map(tokenizer.is_special, reading.marks())),
    )  # fmt: skip
    return PreparedChat(plan, reading)


async def prepare_completion(app: App, request: CompletionRequest) -> PreparedCompletion:
    """Constrain and tokenize a completion.

    Raises:
        SymphonyError: it cannot be served as it is.
    """
    asked = request.generation
    model = await _model(app, asked)
    held = await held_to(app.grammars, asked.owner.tenant, asked.structure, model.tokenizer)
    prompts = []
    for given in request.prompts:
        await asyncio.sleep(0)  # a thousand prompts, each of them short, are long
        prompts.append(await _tokenized(app, model, asked, given))
    _count_ignored(asked)
    default = app.config.max_tokens_default or MAX_TOKENS_DEFAULT
    plan = plan_of(asked, model, prompts, held, app.quotas, default=default)
    echoes = []
    for prompt in prompts if request.echo else ():
        echoes.append(await app.texts.echo(model.tokenizer, prompt.tokens))
        await asyncio.sleep(0)
    return PreparedCompletion(plan, echoes)


async def _model(app: App, asked: GenerationRequest) -> ServedModel:
    return await app.adapters.model(asked.owner.tenant, asked.model, asked.adapter_id)


async def _tokenized(
    app: App, model: ServedModel, asked: GenerationRequest, given: str | list[int]
) -> TokenizedPrompt:
    if isinstance(given, str):
        prompt = await tokenized_text(app, model, asked, given)
    else:
        prompt = await tokenized_ids(app, model, asked, given)
    if not prompt.tokens:
        raise InvalidRequest("prompt: it is empty", "prompt")
    return prompt


def _count_ignored(asked: GenerationRequest) -> None:
    if num := asked.turn.num_ignored_hints:
        telemetry.KV_HINTS.labels("ignored").inc(num)
