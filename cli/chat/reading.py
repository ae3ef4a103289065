"""How the user's messages come in: lines of a pipe, or a prompt with line editing."""

import re
import sys
from collections.abc import Callable
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import is_searching
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from cli.chat.events import encodable

LEAVING = ("/exit", "/quit")
COMMANDS = {
    "/new": "begin a new session",
    "/forget": "delete this session here and on the server, and begin a new one",
    "/help": "this list",
    "/exit": "leave; so does Ctrl-D",
}

_WORD = re.compile(r"/[a-z]*")


def is_command(text: str) -> bool:
    """Whether a line, finished or not, is for the chat itself and not for the model.

    >>> is_command("/ne"), is_command("/etc/hosts holds what?")
    (True, False)
    """
    return _WORD.fullmatch(text.strip()) is not None


PROMPT = "you> "
CONTINUATION = "...  "


class Reader(Protocol):
    """Where messages come from."""

    def ask(self, announce: Callable[[], None]) -> str | None:
        """The next message without blanks around it, which may leave nothing; None at the end.

        Calls `announce` at most once, as soon as a message seems to come.
        """
        ...


class LineReader:
    """Standard input as it is, a message a line."""

    def ask(self, announce: Callable[[], None]) -> str | None:
        """Announces before it reads: a line comes at once or cannot be seen to come."""
        announce()
        if sys.stdin.isatty():
            print(PROMPT, end="", flush=True)
        line = sys.stdin.readline()
        return encodable(line).strip() if line else None


class TerminalReader:
    """A prompt with history. Enter sends, Alt-Enter breaks the line, Ctrl-C clears, Ctrl-D ends."""

    def __init__(self, history: History) -> None:
        self._announce: Callable[[], None] | None = None
        self._session: PromptSession[str] = PromptSession(
            [("bold", PROMPT)],
            history=history,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=CONTINUATION,
            enable_suspend=True,
        )
        self._session.default_buffer.on_text_changed += self._on_text

    def ask(self, announce: Callable[[], None]) -> str | None:
        """Announces at the first key of what is no command."""
        self._announce = announce
        try:
            return encodable(self._session.prompt()).strip()
        except EOFError:
            return None

    def _on_text(self, buffer: Buffer) -> None:
        if self._announce is not None and buffer.text.strip() and not is_command(buffer.text):
            announce, self._announce = self._announce, None
            announce()


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~is_searching)
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=~is_searching)
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=~is_searching)
    @keys.add("<sigint>")
    def clear(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    return keys
