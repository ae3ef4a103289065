"""A conversation as the model's chat template writes it."""

from collections.abc import Sequence, Set
from typing import Any

from services.frontend.prepare.requests import Conversation
from services.frontend.rendering.texts import Texts
from services.frontend.rendering.tokenizer import ModelTokenizer
from shared.errors import InvalidRequest

TEMPLATE_OWN = (
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
    "documents", "max_length", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools",
    "truncation",
)  # fmt: skip
NAME_CHARS_MAX = 64


async def rendered(texts: Texts, tokenizer: ModelTokenizer, conversation: Conversation) -> str:
    """A chat's text.

    Raises:
        InvalidRequest: wrong options, or the template refuses the messages.
        NoCapacity: as `Texts.render`.
    """
    options = template_options(conversation, tokenizer.template_names)
    return await texts.render(tokenizer, list(conversation.messages), options)


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
    if conversation.effort is not None:
        options = _effort(conversation.effort, names) | options
    begins = conversation.add_generation_prompt is not False and not continues
    options |= {"add_generation_prompt": begins, "continue_final_message": continues}
    return options | ({"tools": list(conversation.tools)} if conversation.tools else {})


def _is_idle(name: str, value: Any, known: Sequence[str]) -> bool:
    """Whether a template that does not read this does all the same what it says."""
    return name == "enable_thinking" and value is False and name not in known


def _effort(effort: str, names: Set[str]) -> dict[str, Any]:
    """How much a model is to think, in the words of its template; nothing where it has none."""
    words: dict[str, Any] = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return {name: value for name, value in words.items() if name in names}


def _is_own(name: str) -> bool:
    """Whether it is an argument of transformers' and no variable, whatever a template reads."""
    return name in TEMPLATE_OWN or name.startswith("return_")
