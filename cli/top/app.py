"""The screen of `symphony top`: it follows a frontend's events until it is left."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import httpx
import orjson
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from cli.chat.address import client_options
from cli.top import panels

EVENTS = "/v1/house/events"
SILENT_S = 10.0  # without an event the deployment is taken to be away
RETRY_S = 2.0
PANELS = ("figures", "workers", "hosts", "lately")


class TopApp(App[None]):
    """Args:
    client: of the deployment, with its key.
    """

    CSS = """
    #status { padding: 0 1; }
    VerticalScroll { padding: 0 1; }
    VerticalScroll > Static { margin-bottom: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Leave"),
        Binding("space", "pause", "Stand still"),
    ]

    def __init__(self, client: httpx.AsyncClient) -> None:
        super().__init__()
        self._client = client
        self._is_paused = False

    def compose(self) -> ComposeResult:
        yield Static(f"{self._client.base_url}  connecting", id="status", markup=False)
        with VerticalScroll():
            for name in PANELS:
                yield Static(id=name)
        yield Footer()

    def on_mount(self) -> None:
        self.run_worker(self._follow(), exit_on_error=True)

    def action_pause(self) -> None:
        """Show nothing new, or go on."""
        self._is_paused = not self._is_paused

    async def _follow(self) -> None:
        """Show what comes; ask again for what ended."""
        while True:
            try:
                self._say(f"{await self._read()}; asking again")
            except httpx.HTTPError as error:
                self._say(f"does not answer ({type(error).__name__}); asking again")
            await asyncio.sleep(RETRY_S)

    async def _read(self) -> str:
        """Show views to their end; why they ended."""
        timeout = httpx.Timeout(SILENT_S)
        async with self._client.stream("GET", EVENTS, timeout=timeout) as answer:
            if answer.status_code != 200:
                return _refusal(answer.status_code, await answer.aread())
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    self._show(orjson.loads(line.removeprefix("data: ")))
        return "the deployment ended it"

    def _show(self, view: dict[str, Any]) -> None:
        if self._is_paused:
            return
        away = [one["name"] for one in view["services"] if one["state"] != "ready"]
        state = f"not ready: {', '.join(away)}" if away else "every process is ready"
        self._say(f"{state}, rates of the last {view['window_s']:.0f} s")
        for name in PANELS:
            self.query_one(f"#{name}", Static).update(getattr(panels, name)(view))

    def _say(self, text: str) -> None:
        self.query_one("#status", Static).update(f"{self._client.base_url}  {text}")


def _refusal(status: int, body: bytes) -> str:
    try:
        return f"HTTP {status}: {orjson.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"


def top(url: str, api_key: str, cert_file: Path | None = None) -> None:
    """Show the deployment until its viewer leaves.

    Raises:
        InvalidRequest: `url` is no http(s) address.
    """
    TopApp(httpx.AsyncClient(**client_options(url, api_key, cert_file))).run()
