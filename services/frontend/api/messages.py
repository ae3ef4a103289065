"""A chat's messages and options, as chat templates take them."""

from typing import Any

from services.frontend.api.bodies import ChatBody, TokenizeBody
from shared.errors import InvalidRequest

TEMPLATE_OWN = (
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation",
    "documents", "max_length", "padding", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools",
    "truncation",
)  # fmt: skip


def template_options(body: ChatBody | TokenizeBody) -> dict[str, Any]:
    """What a chat template is told beside the messages.

    Raises:
        InvalidRequest: options that exclude each other, or that are no variables of a template.
    """
    options = dict(body.chat_template_kwargs or {})
    for name in options.keys() & set(TEMPLATE_OWN):
        where = f"chat_template_kwargs.{name}"
        raise InvalidRequest(f"{where}: not a template's variable", where, "unsupported_value")
    continues = bool(body.continue_final_message)
    if continues and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message: not together with add_generation_prompt = true",
            "continue_final_message",
        )
    begins = body.add_generation_prompt is not False and not continues
    return options | {"add_generation_prompt": begins, "continue_final_message": continues}


ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: text content only, roles they know.

    Raises:
        InvalidRequest: names the message and what is wrong with it.
    """
    return [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{where}.role: give one of {', '.join(ROLES)}", f"{where}.role")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise InvalidRequest(
                f"{where}.{name}: not supported", f"{where}.{name}", code="unsupported_value"
            )
    known = {"role": "system" if role == "developer" else role}
    if isinstance(message.get("name"), str):
        known["name"] = message["name"]
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    return known | {"content": _content(content, f"{where}.content")}


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}: give a string or a list of text parts", where)
    texts = []
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise InvalidRequest(
                f"{where}[{at}]: only text parts are supported",
                f"{where}[{at}]",
                code="unsupported_value",
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(f"{where}[{at}].text: give a string", f"{where}[{at}].text")
        texts.append(part["text"])
    return "".join(texts)
