"""What the chat prints besides answers: all of it sanitised, none of it taken for markup."""

from collections.abc import Sequence

from rich.text import Text

from cli.base.reporting import out
from cli.chat.commands import COMMANDS
from cli.chat.conversation import Conversation, Message
from cli.chat.events import Reply
from cli.chat.sanitise import one_line

NUM_SHOWN = 4
SHOWN_CHARS_MAX = 300


def aside(text: str) -> None:
    """A line that is neither the user's nor the model's."""
    out.print(Text(text, style="dim"))


def greet(conversation: Conversation) -> None:
    """Which model and session this is."""
    aside(
        f"{one_line(conversation.model)} · session {one_line(conversation.session_id)} · "
        "/help lists commands, Ctrl-D leaves"
    )


def show_last(messages: Sequence[Message]) -> None:
    """The end of an earlier conversation, so that its user sees where they are."""
    if len(messages) > NUM_SHOWN:
        aside(f"({len(messages) - NUM_SHOWN} earlier messages)")
    for message in messages[-NUM_SHOWN:]:
        start = "you> " if message.role == "user" else ""
        aside(start + one_line(message.content, SHOWN_CHARS_MAX))


def show_usage(reply: Reply) -> None:
    """What the turn cost, as far as the server reports it."""
    num_prompt, num_new = (reply.usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
    if isinstance(num_prompt, int) and isinstance(num_new, int):
        num_cached = (reply.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        aside(f"{num_prompt} prompt tokens, {num_cached} of them cached; {num_new} new")


def show_help() -> None:
    """The commands and keys."""
    for command, meaning in COMMANDS.items():
        aside(f"{command:<9}{meaning}")
    aside("Enter sends, Alt-Enter begins a new line, Ctrl-C clears the line or stops the answer")
