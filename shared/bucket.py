"""Typed values in the key-value store of NATS (JetStream), written by compare and set.

The stream and its subjects are laid out as NATS' own key-value clients do it, so `nats kv` reads
them. Watching is left out: its consumers do not outlive a restart of the server. Whoever needs to
hear of changes publishes them.
"""

import logging
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import api
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from shared.errors import MalformedMessage, PeerUnavailable, SymphonyError
from shared.messages import decode, encode
from shared.subjects import Bucket
from shared.tasks import end_if_cancelled

log = logging.getLogger(__name__)

V = TypeVar("V")

# Error codes of the server, from its list of errors.
NO_SUCH_STREAM = 10059
STREAM_EXISTS = 10058
WRONG_REVISION = (10071, 10164)
NO_JETSTREAM = (None, 10039, 10076)  # None: nobody serves the API

OPEN_TIMEOUT_S = 2.0  # making a stream takes longer than a value
DELETED_HEADER = "KV-Operation"


class NoStore(PeerUnavailable):
    """The NATS server runs without JetStream."""

    code = "no_store"


class RevisionConflict(SymphonyError):
    """The key's revision is not the expected one: somebody else has written."""

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
        self._js = client.jetstream(timeout=timeout_s)
        self._manager = client.jetstream(timeout=OPEN_TIMEOUT_S)
        self._bucket = bucket
        self._stream = f"KV_{bucket.name}"

    async def open(self) -> None:
        """Create the bucket if it is not there.

        Revisions begin at the wall clock in ms: should the store be lost and made anew, then no
        revision means two things, and an old writer's compare-and-set fails.

        Raises:
            NoStore: the server runs without JetStream.
            PeerUnavailable: it does not answer.
        """
        config = api.StreamConfig(
            name=self._stream,
            subjects=[f"$KV.{self._bucket.name}.>"],
            max_msgs_per_subject=1,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            storage=api.StorageType.FILE,
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

    async def get(self, key: str) -> Entry[V]:
        """The latest value. A value of another type counts as none.

        Raises:
            NoStore: the server runs without JetStream.
            PeerUnavailable: no answer in time.
        """
        try:
            message = await self._js.get_msg(self._stream, subject=self._subject(key))
        except NotFoundError as error:
            if error.err_code == NO_SUCH_STREAM:
                await self.open()
            return Entry(None, 0)
        except (TimeoutError, OSError, NatsError) as error:
            raise self._unavailable(error) from None
        finally:
            end_if_cancelled()
        revision = message.seq
        assert revision is not None
        if DELETED_HEADER in (message.headers or {}):
            return Entry(None, revision)
        try:
            return Entry(decode(self._bucket.value, message.data or b""), revision)
        except MalformedMessage as error:
            log.warning("malformed value", extra={"key": key, "error": error.message})
            return Entry(None, revision)

    async def create(self, key: str, value: V) -> int:
        """Write a key that was never written; otherwise like `update`."""
        return await self.update(key, value, 0)

    async def update(self, key: str, value: V, revision: int) -> int:
        """Write if the key's revision is `revision`; returns the new one.

        Raises:
            RevisionConflict: it is another one; nothing was written.
            PeerUnavailable: no answer in time; it may have been written, or be written later.
        """
        headers = {api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(revision)}
        try:
            ack = await self._js.publish(self._subject(key), encode(value), headers=headers)
        except APIError as error:
            if error.err_code in WRONG_REVISION:
                raise RevisionConflict(f"{self._bucket.name}/{key} is not at {revision}") from None
            raise self._unavailable(error) from None
        except (TimeoutError, OSError, NatsError) as error:
            raise self._unavailable(error) from None
        finally:
            end_if_cancelled()
        return ack.seq

    def _subject(self, key: str) -> str:
        return f"$KV.{self._bucket.name}.{key}"

    def _unavailable(self, error: Exception) -> PeerUnavailable:
        if isinstance(error, ServiceUnavailableError) and error.err_code in NO_JETSTREAM:
            return NoStore("the NATS server runs without JetStream")
        return PeerUnavailable(f"store {self._bucket.name}: {type(error).__name__} {error}")
