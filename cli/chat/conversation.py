"""A conversation: its messages, and the turns that add to them."""

from collections.abc import Generator, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from cli.chat.events import Reply
from cli.chat.server import Server


@dataclass(frozen=True, slots=True)
class Message:
    """What one side said."""

    role: Literal["user", "assistant"]
    content: str


class Conversation:
    """A session's messages and the server that they are sent to."""

    def __init__(
        self, server: Server, model: str, session_id: str, messages: Iterable[Message] = ()
    ) -> None:
        self.model = model
        self.session_id = session_id
        self.messages = list(messages)
        self._server = server

    def announce(self) -> None:
        """Send the advisory of the next turn."""
        self._server.announce(self.session_id, self.model)

    def say(self, text: str, reply: Reply) -> Generator[str, None, None]:
        """Stream the answer to `text`, piece by piece, and fill `reply`.

        However the stream ends, `messages` holds whole turns after it: with what was answered
        until then, or without `text` when nothing was. Close the generator to stop the answer.

        Raises:
            SymphonyError: the server's error, or a stream that broke off.
        """
        said = Message("user", text)
        body = {
            "model": self.model,
            "messages": [asdict(message) for message in (*self.messages, said)],
            "session_id": self.session_id,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            yield from self._server.stream(body, reply)
        finally:
            if reply.is_worth_keeping:
                self.messages += [said, Message("assistant", reply.text)]
