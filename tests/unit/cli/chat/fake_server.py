"""An OpenAI server on a free port that answers what a test tells it to."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import unquote

DONE = b"data: [DONE]\n\n"
PATIENCE_S = 20.0


def event(text: str) -> bytes:
    """A piece of an answer; characters beyond ASCII stay as they are."""
    body = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
    return f"data: {body}\n\n".encode(errors="replace")


def error(message: str) -> bytes:
    return json.dumps({"error": {"message": message}}).encode()


@dataclass
class Answer:
    """To one completion; with `is_held` its connection stays open after the body."""

    body: bytes = event("Hello") + DONE
    status: int = 200
    is_held: bool = False


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    method: str
    path: str
    body: Any


@dataclass
class FakeServer:
    url: str
    models: Any = field(default_factory=lambda: [{"id": "m", "task": "generate"}])
    sessions: set[str] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)  # then plain ones
    delete_status: int = 200
    seen: list[Seen] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def of(self, path: str, method: str = "POST") -> list[Seen]:
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def sent_messages(self) -> list[list[str]]:
        """The contents that each completion was asked with."""
        asked = self.of("/v1/chat/completions")
        return [[message["content"] for message in seen.body["messages"]] for seen in asked]

    def wait_for(self, path: str, num: int = 1) -> list[Seen]:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.of(path)) < num:
            assert time.monotonic() < deadline, f"{path}: {self.seen}"
            time.sleep(0.01)
        return self.of(path)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        fake = self._note(None)
        session = unquote(self.path).removeprefix("/v1/sessions/")
        if self.path == "/v1/models":
            self._send(200, json.dumps({"data": fake.models}).encode())
        else:
            self._send(200 if session in fake.sessions else 404, b"{}")

    def do_DELETE(self) -> None:
        fake = self._note(None)
        self._send(fake.delete_status, error("no session"))

    def do_POST(self) -> None:
        fake = self._note(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.path != "/v1/chat/completions":
            self._send(202, b"{}")
            return
        answer = fake.answers.pop(0) if fake.answers else Answer()
        self._send(answer.status, answer.body)
        if answer.is_held:
            fake.released.wait(PATIENCE_S)

    def _note(self, body: Any) -> FakeServer:
        fake = cast(_Http, self.server).fake
        fake.seen.append(Seen(self.command, self.path, body))
        return fake

    def _send(self, status: int, body: bytes) -> None:
        with suppress(OSError):  # the client may have gone
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Http(ThreadingHTTPServer):
    fake: FakeServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hung up


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    with _Http(("127.0.0.1", 0), _Handler) as http:
        http.fake = FakeServer(f"http://127.0.0.1:{http.server_address[1]}")
        thread = threading.Thread(target=http.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield http.fake
        finally:
            http.fake.released.set()
            http.shutdown()
            thread.join()
