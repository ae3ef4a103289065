"""A conversation as the model's chat template writes it."""

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from services.frontend.prepare.requests import Conversation
from services.frontend.rendering.texts import TOO_LONG, Texts
from services.frontend.rendering.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest

TEMPLATE_OWN = (
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
    "documents", "max_length", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools",
    "truncation",
)  # fmt: skip
NAME_CHARS_MAX = 64
EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
VERBOSITIES = frozenset({"low", "medium", "high"})


async def rendered(texts: Texts, tokenizer: ModelTokenizer, conversation: Conversation) -> str:
    """A chat's text. If its template refuses it with the advice on effort and style, as some do for
    a level that they do not know, it is rendered without.

    Raises:
        InvalidRequest: wrong options, or the template refuses the messages.
        NoCapacity: as `Texts.render`.
    """
    names, messages = tokenizer.template_names, list(conversation.messages)
    options = template_options(conversation, names)
    plain = replace(conversation, effort=None, verbosity=None, thinks=None)
    if options == (unadvised := template_options(plain, names)):
        return await texts.render(tokenizer, messages, options)
    try:
        return await texts.render(tokenizer, messages, options)
    except InvalidRequest as error:
        if error.code == TOO_LONG:
            raise
        return await texts.render(tokenizer, messages, unadvised)


def template_options(conversation: Conversation, names: Set[str]) -> dict[str, Any]:
    """What a chat template gets beside the messages.

    Args:
        names: what the model's template reads.

    Raises:
        InvalidRequest: options that exclude each other, or that the template does not read.
    """
    known = sorted(name for name in names if not _is_own(name))
    given = conversation.variables
    options = {name: value for name, value in given.items() if not _is_idle(name, value, known)}
    for name in options.keys() - known:
        where = f"chat_template_kwargs.{name[:NAME_CHARS_MAX]}"
        if _is_own(name):
            raise InvalidRequest(f"{where}: not a template's variable", where, "unsupported_value")
        reads = ", ".join(known) or "nothing beside the messages"
        raise InvalidRequest(
            f"{where}: the model's template does not read it; it reads {reads}",
            where,
            "unsupported_value",
        )
    continues = conversation.continue_final
    if continues and conversation.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message: not together with add_generation_prompt = true",
            "continue_final_message",
        )
    options = {k: v for k, v in _advice(conversation).items() if k in names} | options
    begins = conversation.add_generation_prompt is not False and not continues
    options |= {"add_generation_prompt": begins, "continue_final_message": continues}
    return options | ({"tools": list(conversation.tools)} if conversation.tools else {})


def _is_idle(name: str, value: Any, known: Sequence[str]) -> bool:
    """Whether a template that does not read this does all the same what it says."""
    return name == "enable_thinking" and value is False and name not in known


def _advice(conversation: Conversation) -> dict[str, Any]:
    """How much a model is to think and say, in templates' words. A level that no API has says
    nothing.
    """
    advice: dict[str, Any] = {}
    if conversation.verbosity in VERBOSITIES:
        advice["verbosity"] = conversation.verbosity
    if (effort := conversation.effort) in EFFORTS:
        advice |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    if conversation.thinks is not None:
        advice["enable_thinking"] = conversation.thinks
    return advice


def _is_own(name: str) -> bool:
    """Whether it is an argument of transformers' and no variable, whatever a template reads."""
    return name in TEMPLATE_OWN or name.startswith("return_")
