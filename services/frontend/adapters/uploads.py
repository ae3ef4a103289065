"""Adapters that clients upload: kept in files until a kvstore has fetched them."""

import asyncio
import base64
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from services.frontend.adapters.upload_files import UploadFile, UploadFiles
from services.frontend.core.http.client_timeouts import RequestTooSlow
from services.frontend.core.http.multipart import Data, Multipart, Part
from services.frontend.core.limits.capacity import TooManyRequests
from services.frontend.tenants.gates import part_of
from shared.adapters.config import AdapterInvalid, AdapterTooLarge
from shared.adapters.files import NEEDED, TAKEN, check_names
from shared.adapters.source import PICKLE_FILE
from shared.adapters.tensors import WEIGHTS_FILE
from shared.bus import Bus
from shared.errors import InvalidRequest, NotFound, SymphonyError
from shared.fair_slots import FairLimits, FairSlots, Overloaded
from shared.ids import FrontendId, TenantId, new_id
from shared.wire.messages import AdapterUpload, UploadPart, UploadPull
from shared.wire.subjects import UPLOAD_PULL

UPLOADS_MAX = 8
UPLOAD_S_MAX = 3600.0  # of one, until its last byte is there
FORM_BYTES_MAX = 256 * 1024  # of a form, beside its files
WRITE_BYTES = 1 << 20
PULL_BYTES_MAX = 1 << 20
VALUE_BYTES_MAX = 1024
FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(SymphonyError):
    """There is no room for the upload."""

    code = "disk_full"
    http_status = 507


@dataclass(slots=True)
class Upload:
    """What came with one request.

    Attributes:
        files: open, by name.
        fields: of the form, beside its files.
    """

    upload_id: str
    files: dict[str, UploadFile] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)


class Uploads:
    """Every upload under way.

    Args:
        files: where they are kept.
        bytes_max: of the files of one.
        is_shared: several tenants upload here.
    """

    def __init__(
        self,
        bus: Bus,
        frontend_id: FrontendId,
        files: UploadFiles,
        bytes_max: int,
        *,
        is_shared: bool,
    ) -> None:
        self._bus = bus
        self._frontend_id = frontend_id
        self._files = files
        self._bytes_max = bytes_max
        self._open: dict[str, Upload] = {}
        of_tenant = part_of(UPLOADS_MAX, is_shared=is_shared)
        self._slots = FairSlots("uploads", FairLimits(num=UPLOADS_MAX, of_tenant=of_tenant))

    async def serve(self) -> None:
        """Send uploaded files to the kvstores that ask for them."""
        await self._bus.serve(UPLOAD_PULL, self._on_pull, self._frontend_id)

    @contextmanager
    def opened(self, tenant: TenantId) -> Iterator[Upload]:
        """An upload of `tenant`, which is forgotten at the end of the block.

        Raises:
            TenantQuota: the tenant has as many as it may.
            TooManyRequests: there are as many as are taken at once.
        """
        try:
            self._slots.ask(tenant, 0)
        except Overloaded:
            raise TooManyRequests(f"more than {UPLOADS_MAX} uploads at once") from None
        upload = Upload(new_id("upload"))
        self._open[upload.upload_id] = upload
        with ExitStack() as stack:
            stack.callback(self._slots.give, tenant)
            stack.callback(_close_all, upload)
            stack.callback(self._open.pop, upload.upload_id)
            yield upload

    async def receive(
        self, upload: Upload, content_type: str, body: AsyncIterator[bytes]
    ) -> AdapterUpload:
        """Read a form to its end. The result is for a kvstore, within `opened`.

        Raises:
            InvalidRequest: it is no form, or its files are no adapter's.
            AdapterTooLarge: by the files' bytes.
            DiskFull: there is no room for them.
            RequestTooSlow: it took too long to come.
        """
        form = Multipart(content_type)
        try:
            async with asyncio.timeout(UPLOAD_S_MAX):
                await self._take_form(upload, form, body)
        except TimeoutError:
            raise RequestTooSlow(f"the upload took longer than {UPLOAD_S_MAX:g} s") from None
        except OSError as error:
            if error.errno in FULL:
                raise DiskFull("there is no room on the disk for the upload") from None
            raise SymphonyError(f"the upload cannot be kept: {error.strerror}") from None
        check_names(upload.files, has_pickle=False)
        return AdapterUpload(
            frontend_id=self._frontend_id, upload_id=upload.upload_id, files=dict(upload.sizes)
        )

    async def _take_form(self, upload: Upload, form: Multipart, body: AsyncIterator[bytes]) -> None:
        whole, files = _Room(self._bytes_max, FORM_BYTES_MAX), _Room(self._bytes_max)
        sink: _Sink | None = None
        async for data in body:
            whole.take(len(data))
            for event in form.feed(data):
                if isinstance(event, Part):
                    if sink is not None:
                        await sink.end()
                    sink = await asyncio.to_thread(self._sink, upload, event)
                else:
                    assert isinstance(event, Data) and sink is not None
                    files.take(len(event.data))
                    await sink.put(event.data)
        form.finish()
        if sink is not None:
            await sink.end()

    def _sink(self, upload: Upload, part: Part) -> "_Sink":
        """The sink for a part's bytes."""
        if part.file is None:
            return _FieldSink(upload, part.name)
        if part.file == PICKLE_FILE:
            raise AdapterInvalid(
                PICKLE_FILE, f"a pickle may do anything when it is read: save it as {NEEDED[1]}"
            )
        if part.file not in TAKEN:
            return _Sink()
        if part.file in upload.files:
            raise InvalidRequest(f"{part.file}: it is there twice", part.file)
        file = self._files.create()
        upload.files[part.file], upload.sizes[part.file] = file, 0
        return _FileSink(upload, part.file, file)

    async def _on_pull(self, pull: UploadPull) -> UploadPart:
        upload = self._open.get(pull.upload_id)
        file = None if upload is None else upload.files.get(pull.file)
        if file is None:
            raise NotFound(f"no upload {pull.upload_id!r} with a file {pull.file!r}", "upload_id")
        if pull.offset < 0 or not 0 < pull.num_bytes <= PULL_BYTES_MAX:
            raise InvalidRequest("no part of a file", "offset")
        own = file.duplicate()  # the upload may end while it is read
        try:
            data = await asyncio.to_thread(own.read, pull.offset, pull.num_bytes)
        finally:
            own.close()
        return UploadPart(data=base64.b64encode(data).decode())


class _Sink:
    """Discards a part's bytes."""

    async def put(self, data: bytes) -> None:
        """Take more bytes."""

    async def end(self) -> None:
        """All bytes were put."""


class _FieldSink(_Sink):
    """A field of the form."""

    def __init__(self, upload: Upload, name: str) -> None:
        if name in upload.fields:
            raise InvalidRequest(f"{name}: it is there twice", name)
        self._upload, self._name, self._value = upload, name, b""
        upload.fields[name] = ""

    async def put(self, data: bytes) -> None:
        self._value += data
        if len(self._value) > VALUE_BYTES_MAX:
            raise InvalidRequest(f"{self._name}: longer than {VALUE_BYTES_MAX} bytes", self._name)

    async def end(self) -> None:
        try:
            self._upload.fields[self._name] = self._value.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"{self._name}: no text", self._name) from None


class _FileSink(_Sink):
    """A file, written in few large pieces."""

    def __init__(self, upload: Upload, name: str, file: UploadFile) -> None:
        self._upload, self._name, self._file = upload, name, file
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    async def put(self, data: bytes) -> None:
        self._pieces.append(data)
        self._num_bytes += len(data)
        if self._num_bytes >= WRITE_BYTES:
            await self.end()

    async def end(self) -> None:
        data, self._pieces, self._num_bytes = b"".join(self._pieces), [], 0
        writing = asyncio.ensure_future(asyncio.to_thread(self._file.append, data))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing  # before the file is closed
            raise
        self._upload.sizes[self._name] += len(data)


class _Room:
    """Limit on the bytes of all parts together, including those that are not kept.

    Args:
        num_spare: further bytes, for what is not a file.
    """

    def __init__(self, num_bytes: int, num_spare: int = 0) -> None:
        self._max, self._left = num_bytes, num_bytes + num_spare

    def take(self, num_bytes: int) -> None:
        self._left -= num_bytes
        if self._left < 0:
            raise AdapterTooLarge(
                WEIGHTS_FILE, f"the upload has more than the {self._max} bytes that are taken"
            )


def _close_all(upload: Upload) -> None:
    for file in upload.files.values():
        with suppress(OSError):
            file.close()
    upload.files.clear()
