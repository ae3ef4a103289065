"""The chat page at ``/``, and under ``/static`` what it loads."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

FOLDER = Path(__file__).parent.parent / "static"
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
    """The page's files, guarded as the page is."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        answer = super().file_response(*args, **kwargs)
        answer.headers.update(GUARDS)
        return answer
