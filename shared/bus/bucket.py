"""Typed values in the key-value store of NATS (JetStream), written by compare and set.

nats-py's own client reads and writes them. What it cannot is here: to make a bucket whose revisions
begin above those of an earlier one, to make it again when it is lost, and to tell our errors apart.
Watching is left out: its consumers do not outlive a restart of the server. A writer whose
changes others need publishes them.
"""

import logging
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import api
from nats.js.errors import (
    APIError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    ServiceUnavailableError,
)
from nats.js.kv import KeyValue

from shared.errors import MalformedMessage, PeerUnavailable, SymphonyError
from shared.runtime.tasks import end_if_cancelled
from shared.wire.messages import decode, encode
from shared.wire.subjects import Bucket

log = logging.getLogger(__name__)

V = TypeVar("V")

# Error codes of the server, from its list of errors.
STREAM_EXISTS = 10058
NO_JETSTREAM = (None, 10039, 10076)  # None: the API is not served

OPEN_TIMEOUT_S = 2.0  # making a stream takes longer than a value


class NoStore(PeerUnavailable):
    """The NATS server runs without JetStream."""

    code = "no_store"


class RevisionConflict(SymphonyError):
    """The key's revision is not the expected one: another process has written."""

    code = "revision_conflict"


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """A key's value, None where there is none, under its revision: 0 if it was never written."""

    value: V | None
    revision: int


class KvBucket(Generic[V]):
    """One bucket. Use `Bus.bucket` to get it.

    Args:
        timeout_s: how long reading or writing waits for the store.
    """

    def __init__(self, client: Client, bucket: Bucket[V], timeout_s: float) -> None:
        self._client = client
        self._manager = client.jetstream(timeout=OPEN_TIMEOUT_S)
        self._bucket = bucket
        self._stream, self._subjects = f"KV_{bucket.name}", f"$KV.{bucket.name}."
        store = client.jetstream(timeout=timeout_s)
        self._values = KeyValue(bucket.name, self._stream, self._subjects, store, direct=False)

    async def open(self) -> None:
        """Create the bucket if it is not there.

        A server that is alone keeps it in memory: its disk may be full, or lose what is on it, and
        leadership must not depend on that. A cluster keeps it on disk: else the number of copies
        that was set (`cli.replicate_leases`) would be gone when all servers restart.

        Revisions begin at the wall clock in ms: should the store be lost and made again, then no
        revision means two things, and an old writer's compare-and-set fails.

        Raises:
            NoStore: the server runs without JetStream.
            PeerUnavailable: it does not answer.
        """
        config = api.StreamConfig(
            name=self._stream,
            subjects=[f"{self._subjects}>"],
            max_msgs_per_subject=1,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            storage=self._storage(),
            first_seq=time.time_ns() // 1_000_000,
        )
        try:
            await self._manager.add_stream(config)
        except APIError as error:
            if error.err_code != STREAM_EXISTS:  # it is there, made at another instant
                raise self._unavailable(error) from None
        except (TimeoutError, OSError, NatsError) as error:
            raise self._unavailable(error) from None
        finally:
            end_if_cancelled()  # the client's library may have kept it for itself

    def _storage(self) -> api.StorageType:
        is_cluster = bool(self._client._server_info.get("cluster"))
        return api.StorageType.FILE if is_cluster else api.StorageType.MEMORY

    async def get(self, key: str) -> Entry[V]:
        """The latest value. A value of another type counts as none.

        Raises:
            NoStore: the server runs without JetStream.
            PeerUnavailable: no answer in time.
        """
        try:
            found = await self._values.get(key)
        except KeyNotFoundError as error:
            if error.entry is not None:
                return Entry(None, error.entry.revision)  # deleted
            await self.open()  # if it is the bucket that is gone: the client does not say
            return Entry(None, 0)
        except (TimeoutError, OSError, NatsError) as error:
            raise self._unavailable(error) from None
        finally:
            end_if_cancelled()
        assert found.revision is not None
        try:
            return Entry(decode(self._bucket.value, found.value or b""), found.revision)
        except MalformedMessage as error:
            log.warning("malformed value", extra={"key": key, "error": error.message})
            return Entry(None, found.revision)

    async def create(self, key: str, value: V) -> int:
        """Write a key that was never written; otherwise like `update`."""
        return await self.update(key, value, 0)

    async def update(self, key: str, value: V, revision: int) -> int:
        """Write if the key's revision is `revision`; returns the new one.

        Raises:
            RevisionConflict: it is another one; nothing was written.
            PeerUnavailable: no answer in time; it may have been written, or be written later.
        """
        try:
            return await self._values.update(key, encode(value), revision)
        except KeyWrongLastSequenceError:
            raise RevisionConflict(f"{self._bucket.name}/{key} is not at {revision}") from None
        except (TimeoutError, OSError, NatsError) as error:
            raise self._unavailable(error) from None
        finally:
            end_if_cancelled()

    def _unavailable(self, error: Exception) -> PeerUnavailable:
        if isinstance(error, ServiceUnavailableError) and error.err_code in NO_JETSTREAM:
            return NoStore("the NATS server runs without JetStream")
        return PeerUnavailable(f"store {self._bucket.name}: {type(error).__name__} {error}")
