"""What a line that begins with a slash asks for."""

import re

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
