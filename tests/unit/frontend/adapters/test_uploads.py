"""Uploads: how many at once, how large, and for how long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from services.frontend.adapters import uploads
from services.frontend.adapters.upload_files import UnnamedFiles
from services.frontend.adapters.uploads import FORM_BYTES_MAX, UPLOADS_MAX, Uploads
from services.frontend.core.http.client_timeouts import RequestTooSlow
from services.frontend.core.limits.capacity import TooManyRequests
from shared.adapters.config import AdapterTooLarge
from shared.errors import TenantQuota
from shared.ids import FrontendId, TenantId

FORM = "multipart/form-data; boundary=b"
A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def make(folder: Path, *, is_shared: bool = True) -> Uploads:
    return Uploads(
        cast(Any, None), FrontendId("f"), UnnamedFiles(folder), 1000, is_shared=is_shared
    )


def test_a_tenant_s_uploads_leave_room_to_another_s(tmp_path: Path) -> None:
    them = make(tmp_path)
    with ExitStack() as stack:
        for _ in range(UPLOADS_MAX // 2):
            stack.enter_context(them.opened(A))
        with pytest.raises(TenantQuota):
            stack.enter_context(them.opened(A))
        for _ in range(UPLOADS_MAX // 2):
            stack.enter_context(them.opened(B))
        with pytest.raises(TooManyRequests):
            stack.enter_context(them.opened(C))
    with them.opened(A), them.opened(C):
        pass
    alone = make(tmp_path, is_shared=False)
    with ExitStack() as stack:
        for _ in range(UPLOADS_MAX):
            stack.enter_context(alone.opened(A))


@pytest.mark.parametrize(
    "form",
    [
        [b"preamble" * 100],
        [b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--b--', b"behind it" * 100],
    ],
)
def test_what_is_no_file_has_an_end_too(form: list[bytes], tmp_path: Path) -> None:
    async def body() -> AsyncIterator[bytes]:
        for part in form[:-1]:
            yield part
        for _ in range(FORM_BYTES_MAX // 100):
            yield form[-1]
        raise AssertionError("it is read on")

    async def scenario() -> None:
        them = make(tmp_path)
        with them.opened(A) as upload, pytest.raises(AdapterTooLarge):
            await them.receive(upload, FORM, body())

    asyncio.run(scenario())


def test_an_upload_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_S_MAX", 0.0)

    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0)

    async def scenario() -> None:
        them = make(tmp_path)
        with them.opened(A) as upload, pytest.raises(RequestTooSlow):
            await them.receive(upload, FORM, body())

    asyncio.run(scenario())
