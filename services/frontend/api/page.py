"""The chat page at ``/``, and under ``/static`` what it loads."""

import os
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

FOLDER = Path(__file__).parent.parent / "static"
CLIENT = Path(__file__).parents[3] / "clients" / "symphony.js" / "index.js"
GUARDS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    """The page."""
    return FileResponse(FOLDER / "index.html", headers=GUARDS)


class Assets(StaticFiles):
    """The page's files and the JavaScript client, guarded as the page is."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        if path == "symphony.js":  # where it is kept there is one of it, for pages and for Node
            return str(CLIENT), CLIENT.stat()
        return super().lookup_path(path)

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers.update(GUARDS)
        return answer
