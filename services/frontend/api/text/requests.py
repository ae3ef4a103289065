"""The first stage: what bodies ask for, as `prepare.requests` has it.

What is wrong with a body alone is refused here. Nothing behind this sees a body.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from services.frontend.api.bodies.base import token_list, unsupported
from services.frontend.api.bodies.kv_hints import wishes_of
from services.frontend.api.bodies.text import (
    CHOICES_PER_REQUEST_MAX,
    PROMPTS_MAX,
    ChatBody,
    CompletionBody,
    Generate,
    Sampled,
    ThinkingSwitch,
    TokenizeBody,
    Tool,
    ToolFunction,
    agent_of,
    session_of,
    stop_strings,
)
from services.frontend.api.text.structure import structure_of
from services.frontend.core.replies.choice import TextRules
from services.frontend.core.tools.forcing import CallRule
from services.frontend.http.request import Origin
from services.frontend.prepare.messages import chat_messages
from services.frontend.prepare.requests import (
    ChatRequest,
    CompletionRequest,
    Conversation,
    GenerationRequest,
    Image,
    Owner,
    SamplingRequest,
    ThoughtRequest,
    ToolRequest,
    Truncation,
    TurnRequest,
)
from shared.errors import InvalidRequest
from shared.ids import SessionId

# Of bodies and requests alike; `logprobs` is a truth value in chats.
SAMPLING_NAMES = [each.name for each in fields(SamplingRequest) if each.name != "logprobs"]
SHOWN_OF_TOOLS = {"name", "description", "parameters"}
PROMPT_WORDS = {"messages": "prompt"}  # what a prompt without a template calls its text
PROMPT_KINDS = "prompt: give text, tokens, or a list of either"


def chat_request(body: ChatBody, origin: Origin) -> ChatRequest:
    """What a chat asks for.

    Raises:
        InvalidRequest: it is impossible whatever model serves it.
    """
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs: only with logprobs = true", "top_logprobs")
    generation = _generation(body, origin, (body.top_logprobs or 0) if body.logprobs else None)
    return ChatRequest(
        generation=replace(generation, max_tokens=body.max_completion_tokens or body.max_tokens),
        tools=tool_request(functions(body.tools), body.tool_choice, body.parallel_tool_calls),
        conversation=replace(
            conversation_of(body),
            effort=_effort(body),
            verbosity=body.verbosity,
            thinks=_thinks(body),
        ),
        thoughts=ThoughtRequest(
            is_apart=body.separate_reasoning is not False,
            is_shown=body.include_reasoning is not False,
        ),
    )


async def completion_request(body: CompletionBody, origin: Origin) -> CompletionRequest:
    """What a completion asks for, with pauses in which others have their turn.

    Raises:
        InvalidRequest: it is impossible whatever model serves it.
    """
    generation = _generation(body, origin, body.logprobs)
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest("max_tokens: 0 only with echo", "max_tokens")
    sampling = generation.sampling
    if body.echo:
        shown = [num for num in (sampling.prompt_logprobs, body.logprobs) if num is not None]
        sampling = replace(sampling, prompt_logprobs=max(shown, default=None))
    return CompletionRequest(
        generation=replace(
            generation,
            sampling=sampling,
            max_tokens=body.max_tokens,
            rules=replace(generation.rules, discard=body.max_tokens == 0),
            special=body.add_special_tokens is not False,
        ),
        prompts=await _prompts(body.prompt, body.n or 1),
        echo=bool(body.echo),
    )


def _effort(body: ChatBody) -> str | None:
    if body.reasoning_effort is not None or body.reasoning is None:
        return body.reasoning_effort
    return body.reasoning.effort


def _thinks(body: ChatBody) -> bool | None:
    given = body.enable_thinking if body.thinking is None else body.thinking
    return given.is_on if isinstance(given, ThinkingSwitch) else given


def conversation_of(body: ChatBody | TokenizeBody) -> Conversation:
    """What a template is to write out."""
    images: list[Image] | None = [] if isinstance(body, ChatBody) else None
    return Conversation(
        messages=chat_messages(body.messages or [], images),
        images=images or (),
        tools=template_tools(functions(body.tools)),
        variables=body.chat_template_kwargs or {},
        add_generation_prompt=body.add_generation_prompt,
        continue_final=bool(body.continue_final_message),
    )


def shared_request(
    body: Sampled, origin: Origin, session_id: SessionId | None
) -> GenerationRequest:
    """What every API for text has; the rest is left as it is without it.

    Raises:
        InvalidRequest: wrong hints, or half of an agent's name.
    """
    wishes = wishes_of(body.kv_hints, session_id)
    known = type(body).model_fields  # a body also has what its client made up
    sampling = {name: getattr(body, name) for name in SAMPLING_NAMES if name in known}
    num_hints = len(body.kv_hints.actions) if body.kv_hints is not None else 0
    return GenerationRequest(
        origin=origin,
        owner=Owner(tenant=origin.tenant, session_id=session_id, cache_salt=body.cache_salt or ""),
        model=body.model,
        adapter_id=body.adapter_id,
        sampling=SamplingRequest(**{n: v for n, v in sampling.items() if v is not None}),
        turn=TurnRequest(
            priority=body.priority,
            kv_expiry_s=body.kv_expiry_s,
            agent=None if session_id is None else agent_of(body.agent, body.workflow_id, origin),
            wishes=wishes,
            num_ignored_hints=num_hints - len(wishes),
        ),
    )


def functions(tools: Sequence[Tool] | None) -> list[ToolFunction]:
    """The functions that a chat's tools are."""
    return [tool.function for tool in tools or ()]


def template_tools(tools: Sequence[ToolFunction]) -> list[dict[str, Any]]:
    """As clients write them, and so as templates were made for."""
    return [
        {"type": "function", "function": tool.model_dump(exclude_none=True, include=SHOWN_OF_TOOLS)}
        for tool in tools
    ]


def tool_request(
    tools: Sequence[ToolFunction], choice: Any, is_parallel: bool | None
) -> ToolRequest | None:
    """What a reply may call; None: nothing. What the model gets to know of tools is the same in any
    case, so that a session's prompts begin alike.

    Args:
        choice: as chats have it.

    Raises:
        InvalidRequest: two tools of one name, or the choice is none of them.
    """
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice: there are no tools", "tool_choice")
        return None
    rules = {tool.name: CallRule(tool.name, tool.parameters, bool(tool.strict)) for tool in tools}
    if len(rules) < len(tools):
        raise InvalidRequest("tools: several have the same name", "tools")
    calls_max = 1 if is_parallel is False else None
    match choice:
        case "none":
            return None
        case None | "auto":
            return ToolRequest(tuple(rules.values()), calls_max)
        case "required":
            return ToolRequest(tuple(rules.values()), calls_max, is_forced=True)
        case {"type": "function", "function": {"name": str(name)}}:
            if name not in rules:
                raise InvalidRequest(f"tool_choice: no tool is named {name[:64]!r}", "tool_choice")
            return ToolRequest((rules[name],), 1, is_forced=True)
        case _:
            served = (
                'give "auto", "none", "required", or {"type": "function", "function": {"name"}}'
            )
            raise unsupported("tool_choice", served)


def _generation(body: Generate, origin: Origin, logprobs: int | None) -> GenerationRequest:
    """What chat and completions share."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "only best_of = n is")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options: only with stream = true", "stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidRequest("prompt_logprobs: not with stream = true", "prompt_logprobs")
    shared = shared_request(body, origin, session_of(body.session_id, origin))
    return replace(
        shared,
        sampling=replace(shared.sampling, logprobs=logprobs),
        rules=TextRules(
            stop=stop_strings(body.stop),
            keep_stop=bool(body.include_stop_str_in_output),
            stop_token_ids=shared.sampling.stop_token_ids,
            min_tokens=shared.sampling.min_tokens,
        ),
        structure=structure_of(body),
        n=body.n or 1,
        truncation=_truncation(body.truncate_prompt_tokens, body.truncation_side),
        special=bool(body.add_special_tokens),
        show_special=body.skip_special_tokens is False,
        shows_tiers=bool(body.return_cached_tokens_details),
    )


def _truncation(keep: int | None, side: str | None) -> Truncation | None:
    return None if keep is None else Truncation(keep=keep, keep_start=side == "right")


async def _prompts(given: Any, n: int) -> list[str | list[int]]:
    """The field `prompt`: a string, a list of strings, tokens, or a list of those."""
    if tokens := token_list(given):
        return [tokens]
    many = [given] if isinstance(given, str) else given
    if not isinstance(many, list) or not many:
        raise InvalidRequest(PROMPT_KINDS, "prompt")
    if len(many) > PROMPTS_MAX or len(many) * n > CHOICES_PER_REQUEST_MAX:
        raise InvalidRequest(
            f"prompt: more than {CHOICES_PER_REQUEST_MAX} choices in one request", "prompt"
        )
    prompts: list[str | list[int]] = []
    for item in many:
        prompt = item if isinstance(item, str) else token_list(item)
        if prompt is None:
            raise InvalidRequest(PROMPT_KINDS, "prompt")
        prompts.append(prompt)
        await asyncio.sleep(0)  # a thousand prompts, each of them short, are long
    return prompts


def json_format(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A chat's `response_format`, from the field `name` that has a JSON schema.

    Raises:
        InvalidRequest: it has none.
    """
    schema = given.get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{name}.schema: give a JSON schema", name)
    return {"type": "json_schema", "json_schema": {"schema": schema}}


@contextmanager
def errors_named(words: Mapping[str, str]) -> Iterator[None]:
    """Errors of a chat's are raised with the names that its fields have here.

    Args:
        words: a chat's field, and what is called so here.
    """
    try:
        yield
    except InvalidRequest as error:
        field = (error.param or "").partition(".")[0].partition("[")[0]
        if (own := words.get(field)) is not None:
            error.param = own
            error.message = error.message.replace("response_format.json_schema", own).replace(
                f"{field}:", f"{own}:"
            )
        raise
