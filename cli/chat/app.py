"""The chat itself: reads, obeys commands, takes turns, keeps the transcript."""

import io
import sys
from contextlib import closing
from pathlib import Path

from cli.base.reporting import complain
from cli.chat.address import http_client
from cli.chat.commands import LEAVING, is_command
from cli.chat.conversation import Conversation
from cli.chat.events import Reply, encodable
from cli.chat.history import open_history
from cli.chat.models import first_that_chats, require_chat
from cli.chat.reading import LineReader, Reader, TerminalReader
from cli.chat.sanitise import one_line, visible
from cli.chat.server import Server
from cli.chat.showing import aside, greet, show_help, show_last, show_usage
from cli.chat.transcript import DamagedTranscript, Transcript, Transcripts
from shared.errors import InvalidRequest, SymphonyError
from shared.ids import new_id

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
