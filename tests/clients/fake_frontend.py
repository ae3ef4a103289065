"""A frontend that says what a test tells it to, and remembers what it was asked, in order."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import unquote

Reply = tuple[int, dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """A request. `session_id` is that of the body, else of the path."""

    method: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def session_id(self) -> str:
        named = self.body.get("session_id") or unquote(self.path.rpartition("/")[2])
        assert isinstance(named, str)
        return named

    @property
    def is_hint(self) -> bool:
        return self.path.startswith("/v1/advisories")

    def brief(self) -> str:
        """What it was about, for tests that look at the order."""
        if not self.is_hint:
            return f"turn {self.session_id}" if "session_id" in self.body else "turn"
        return f"{'hint' if self.method == 'POST' else 'no'} {self.session_id}"


def state_of(session_id: str, state: str = "placed", **more: Any) -> dict[str, Any]:
    """An advisory's, as a frontend shows it."""
    return {
        "session_id": session_id, "state": state, "tenant": "default", "model_id": "m",
        "worker_id": "w", "priority": 1, "num_merged": 0, "created": 1.0, "expires": 2.0,
        "agent": "", "workflow_id": "", "chance": 0.9, "acted_on": True, "why": "", **more,
    }  # fmt: skip


def refusal(status: int, code: str, message: str = "no") -> Reply:
    return status, {"error": {"message": message, "type": "t", "param": None, "code": code}}


@dataclass
class FakeFrontend:
    """Attributes:
    url: where it is.
    asked: so far.
    answer: of advisories and sessions.
    headers: of each such answer.
    script: replies of the model, in turn: a text, or tools to call by name.
    free: while it is not set only turns are answered.
    """

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    answer: Callable[[Asked], Reply] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    script: list[str | list[tuple[str, dict[str, Any]]]] = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)

    def hints(self, session_id: str | None = None) -> list[dict[str, Any]]:
        """Bodies of the advisories that came."""
        return [
            one.body
            for one in list(self.asked)
            if one.is_hint
            and one.method == "POST"
            and (session_id is None or one.session_id == session_id)
        ]

    def told(self) -> list[str]:
        """All that came, briefly."""
        return [one.brief() for one in list(self.asked)]

    def reply_to(self, asked: Asked) -> Reply:
        if self.answer is not None:
            return self.answer(asked)
        if asked.is_hint:
            is_back = asked.method == "DELETE"
            return 202, state_of(asked.session_id, "invalidated" if is_back else "placed")
        return refusal(404, "not_found")

    def turn(self, asked: Asked) -> dict[str, Any]:
        """The next reply of the script."""
        said = self.script.pop(0)
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if not isinstance(said, str):
            number = len(self.asked)
            message["content"] = None
            message["tool_calls"] = [
                {
                    "id": f"call-{number}-{index}", "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for index, (name, arguments) in enumerate(said)
            ]  # fmt: skip
        reason = "stop" if isinstance(said, str) else "tool_calls"
        return {
            "id": "chat", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one_request(self) -> None:
        with suppress(ConnectionError):
            super().handle_one_request()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _serve(self) -> None:
        frontend = cast("_Server", self.server).frontend
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length)
        body = json.loads(content) if content else {}
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, self.path, body, headers)
        frontend.asked.append(asked)
        if asked.path.endswith("/chat/completions"):
            self._answer(200, frontend.turn(asked), {})
            return
        frontend.free.wait(30)
        status, document = frontend.reply_to(asked)
        self._answer(status, document, frontend.headers)

    def _answer(self, status: int, document: dict[str, Any], headers: dict[str, str]) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - http.server's names


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    frontend: FakeFrontend


@contextmanager
def fake_frontend(port: int = 0) -> Iterator[FakeFrontend]:
    """One that answers at once that all is well; on a free port, if none is given."""
    server = _Server(("127.0.0.1", port), _Handler)
    frontend = server.frontend = FakeFrontend(f"http://127.0.0.1:{server.server_address[1]}")
    frontend.free.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield frontend
    finally:
        frontend.free.set()
        server.shutdown()
        server.server_close()
        thread.join()
