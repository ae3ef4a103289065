"""A bucket: objects are put, read by ranges, listed and deleted. Every call blocks, for a limited
time, and may be made in any thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import from_url
from typing_extensions import Buffer

CONNECT_S = 2.0
REQUEST_S = 15.0  # a whole one: it ends, whatever happens
RETRIES_MAX = 2
RETRY_S = 10.0
PART_BYTES = 8 * 1024 * 1024  # of an object that is sent in parts
PARTS_MAX = 4  # at a time
SCHEMES = ("s3", "gs", "az", "file")


class StoreFailed(Exception):
    """The object store did not do it, or may not have; says nothing of what is there."""


class NoObject(Exception):
    """There is no such object."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object.

    Attributes:
        written_s: wall clock, seconds.
    """

    name: str
    num_bytes: int
    written_s: int


class ObjectStore(Protocol):
    """A bucket that all hosts share. Every call blocks and may be made in any thread."""

    def put(self, name: str, data: Buffer) -> None:
        """Raises:
        StoreFailed: it may be there all the same.
        """
        ...

    def get(self, name: str, start: int, num_bytes: int) -> memoryview:
        """Bytes of an object; fewer, if it is shorter.

        Raises:
            NoObject: there is none.
            StoreFailed: it was not read.
        """
        ...

    def walk(self, folder: str = "") -> Iterator[list[Listed]]:
        """List all objects, or those in a folder, some at a time, in order of their names.

        Raises:
            StoreFailed: at any time.
        """
        ...

    def delete(self, names: list[str]) -> None:
        """Missing objects are no error.

        Raises:
            StoreFailed: some may be there yet.
        """
        ...


class Bucket:
    """An `ObjectStore` on S3, or on what speaks its protocol.

    Args:
        url: ``s3://bucket/prefix``; endpoint and credentials come from the variables that every
            client of S3 reads (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``...).

    Raises, when made:
        ValueError: the URL names no object store.
    """

    def __init__(self, url: str) -> None:
        scheme = urlsplit(url).scheme
        if scheme not in SCHEMES:
            raise ValueError(
                f"must begin with one of {', '.join(f'{each}://' for each in SCHEMES)}"
            )
        options: dict[str, Any] = {}
        if scheme == "file":
            options["mkdir"] = True
        else:
            options["client_options"] = {
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=REQUEST_S),
                "allow_http": True,
            }
            options["retry_config"] = {
                "max_retries": RETRIES_MAX,
                "retry_timeout": timedelta(seconds=RETRY_S),
            }
        try:
            self._store = from_url(url, **options)
        except (BaseError, ValueError, OSError) as error:
            raise ValueError(str(error)) from None

    def put(self, name: str, data: Buffer) -> None:
        with _judged():
            obstore.put(
                self._store, name, memoryview(data),
                chunk_size=PART_BYTES, max_concurrency=PARTS_MAX,
            )  # fmt: skip

    def get(self, name: str, start: int, num_bytes: int) -> memoryview:
        with _judged():
            return memoryview(obstore.get_range(self._store, name, start=start, length=num_bytes))

    def walk(self, folder: str = "") -> Iterator[list[Listed]]:
        with _judged(is_listing=True):
            pages = iter(obstore.list(self._store, prefix=folder or None))
        while True:
            with _judged(is_listing=True):
                page = next(pages, None)
            if page is None:
                return
            yield [
                Listed(each["path"], each["size"], int(each["last_modified"].timestamp()))
                for each in page
            ]

    def delete(self, names: list[str]) -> None:
        if not names:
            return
        with _judged():
            try:
                obstore.delete(self._store, names)
            except (NotFoundError, FileNotFoundError):
                for name in names:
                    self._delete_one(name)

    def _delete_one(self, name: str) -> None:
        try:
            obstore.delete(self._store, name)
        except (NotFoundError, FileNotFoundError):
            return


@contextmanager
def _judged(*, is_listing: bool = False) -> Iterator[None]:
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        if is_listing:  # there is no bucket
            raise StoreFailed(_first_line(error)) from error
        raise NoObject(_first_line(error)) from error
    except (BaseError, OSError, ValueError) as error:
        raise StoreFailed(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """The library adds pages of what led to it."""
    return str(error).partition("\n")[0][:500]
