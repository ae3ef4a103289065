"""The chat itself: reads, obeys commands, takes turns, keeps the transcript."""

import io
import os
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.text import Text

from cli.base.reporting import complain, out
from cli.chat.address import http_client
from cli.chat.conversation import Conversation, Message
from cli.chat.events import Reply, encodable
from cli.chat.reading import COMMANDS, LEAVING, LineReader, Reader, TerminalReader, is_command
from cli.chat.sanitise import one_line, visible
from cli.chat.server import Server, first_that_chats, require_chat
from cli.chat.transcript import DamagedTranscript, Transcript, Transcripts
from shared.errors import InvalidRequest, SymphonyError
from shared.ids import new_id

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


FILE_BYTES_MAX = 1 << 20


class KeptHistory(FileHistory):
    """A file of lines; a disk that takes none costs the line's place in it, nothing else."""

    def store_string(self, string: str) -> None:
        """Append one."""
        with suppress(OSError):
            super().store_string(string)


def open_history(path: Path, file_bytes_max: int = FILE_BYTES_MAX) -> History:
    """The history kept in `path`, readable by its owner alone; of a file grown too large the newer
    half. Where no file can be, a history of this chat alone.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            os.fchmod(file.fileno(), 0o600)
            if os.fstat(file.fileno()).st_size > file_bytes_max:
                file.seek(-(file_bytes_max // 2), os.SEEK_END)
                _, _, kept = file.read().partition(b"\n\n")  # from an entry's beginning
                file.seek(0)
                file.write(b"\n" + kept)
                file.truncate()
    except OSError:
        return InMemoryHistory()
    return KeptHistory(str(path))


SESSION_CHARS_MAX = 256


def chat(
    url: str,
    model: str | None,
    session: str | None,
    api_key: str,
    data_dir: Path,
    cert_file: Path | None = None,
) -> None:
    """Talk until end of input or ``/exit``. Transcripts are kept in `data_dir`, wherever the
    server is.

    Args:
        cert_file: the server's own certificate; None: what the machine trusts.

    Raises:
        PeerUnavailable: the frontend cannot be reached.
        NotFound: it serves no model to chat with, or not the one asked for.
        InvalidRequest: `url`, `session` or `model` cannot be used.
    """
    _require_session_id(session)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # bytes of no encoding end no chat
            stream.reconfigure(errors="replace")
    folder = data_dir / "chats"
    with http_client(url, api_key, cert_file) as client:
        server, transcripts = Server(client), Transcripts(folder)
        conversation = begin(server, transcripts, model, session)
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        reader = TerminalReader(open_history(folder / "history")) if is_terminal else LineReader()
        Chat(server, transcripts, reader, conversation).run()


def begin(
    server: Server, transcripts: Transcripts, model: str | None, session: str | None
) -> Conversation:
    """A new conversation, or `session` as it was when this machine last saw it; greets.

    Raises:
        SymphonyError: see `chat`.
    """
    served = server.models()
    transcript, remark = None, ""
    if session:
        try:
            transcript = transcripts.load(session)
            if transcript is None and server.knows_session(session):
                remark = "this session's messages are not on this machine: it starts again"
        except DamagedTranscript as error:
            remark = f"{error.message}: the session starts again"
    wanted = model or (transcript.model if transcript else None)
    conversation = Conversation(
        server,
        require_chat(served, wanted) if wanted else first_that_chats(served),
        session or new_id("chat"),
        transcript.messages if transcript else (),
    )
    greet(conversation)
    show_last(conversation.messages)
    if remark:
        complain(remark)
    return conversation


class Chat:
    """A user at one end, conversations at the other."""

    def __init__(
        self, server: Server, transcripts: Transcripts, reader: Reader, conversation: Conversation
    ) -> None:
        self._server = server
        self._transcripts = transcripts
        self._reader = reader
        self._conversation = conversation

    def run(self) -> None:
        """Until the user leaves."""
        while True:
            text = self._reader.ask(self._conversation.announce)
            if text is None or text in LEAVING:
                return
            if is_command(text):
                self._obey(text)
            elif text:
                self._take_turn(text)

    def _obey(self, command: str) -> None:
        match command:
            case "/help":
                show_help()
            case "/new":
                self._begin_anew()
            case "/forget":
                self._forget()
            case _:
                complain(f"no command {command}: /help lists them")

    def _begin_anew(self) -> None:
        self._conversation = Conversation(self._server, self._conversation.model, new_id("chat"))
        greet(self._conversation)

    def _forget(self) -> None:
        session_id = self._conversation.session_id
        try:
            self._server.forget_session(session_id)
            self._transcripts.remove(session_id)
        except SymphonyError as error:
            complain(f"not forgotten: {error.message}")
        except OSError as error:
            complain(f"{self._transcripts.path_of(session_id)} is still there: {error.strerror}")
        else:
            self._begin_anew()

    def _take_turn(self, text: str) -> None:
        reply = Reply()
        with closing(self._conversation.say(text, reply)) as pieces:
            try:
                for piece in pieces:
                    print(visible(piece), end="", flush=True)
                print()
                show_usage(reply)
            except SymphonyError as error:
                if reply.text:
                    print()
                complain(error.message)
            except KeyboardInterrupt:  # closing hangs up and stops the turn; the chat goes on
                aside("\nstopped")
        if reply.is_worth_keeping:
            self._keep()
        else:
            aside("not sent: the message is taken back, the chat is as before")

    def _keep(self) -> None:
        talk = self._conversation
        transcript = Transcript(
            session_id=talk.session_id, model=talk.model, messages=talk.messages
        )
        try:
            self._transcripts.save(transcript)
        except OSError as error:
            path = self._transcripts.path_of(talk.session_id)
            complain(f"the chat is not kept in {path}: {error.strerror}")


def _require_session_id(session: str | None) -> None:
    if session and (len(session) > SESSION_CHARS_MAX or encodable(session) != session):
        raise InvalidRequest(
            f"--session {one_line(session, 40)}: give 1 to {SESSION_CHARS_MAX} characters"
        )
