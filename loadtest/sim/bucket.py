"""An object store that is slow, away, forgets and damages; and each kvstore's client of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from typing_extensions import Buffer

from loadtest.sim.threads import wait_ns
from loadtest.sim.timeline import MS, SECOND, Timeline
from services.kvstore.core import Run, folder_of, run_of
from services.kvstore.tiers.objects.store import Listed, NoObject, StoreFailed
from services.kvstore.tiers.values import HEADER_BYTES, BadValue, pack_header, unpack_header
from shared.owners import OwnerKey

CALL_NS = 20 * MS  # a request, at most
TIMEOUT_NS = 300 * MS  # of one, while the store is away
REQUEST_MAX_NS = 15 * SECOND  # of one, whatever happens
SLOW_MIN_NS, SLOW_MAX_NS = SECOND, 20 * SECOND  # of one, while it is slow
HALF_DONE_SHARE = 0.3  # of writes that fail: they were done
LISTED_MAX = 3  # objects in one answer


@dataclass
class Bucket:
    """Attributes:
    objects: bytes of each, and when it was written, wall clock, seconds.
    is_away: every request fails.
    is_slow: requests that begin now take long.
    slow_until_ns: by then all of those were answered.
    """

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    is_away: bool = False
    is_slow: bool = False
    slow_until_ns: int = 0

    def damage(self, random: Random, share: float) -> None:
        """Some objects lose their bytes."""
        for name, (data, written_s) in self.objects.items():
            if random.random() < share:
                self.objects[name] = bytes(each ^ 1 for each in data), written_s

    def lose(self, random: Random, share: float) -> None:
        """Some objects are gone."""
        for name in [name for name in self.objects if random.random() < share]:
            del self.objects[name]

    def runs(self, owner: OwnerKey | None = None) -> list[Run]:
        """Of all hosts; of all sessions, or of one."""
        folder = "" if owner is None else folder_of(owner)
        found = [run_of(name) for name in sorted(self.objects) if name.startswith(folder)]
        return [run for run in found if run is not None]


class SimObjects:
    """One kvstore's client of a bucket, an `ObjectStore`; its calls are made in threads.

    Args:
        wall_ns: the host's wall clock.
        is_lying: whether what it says of pages is wrong now.
    """

    def __init__(
        self,
        bucket: Bucket,
        timeline: Timeline,
        random: Random,
        wall_ns: Callable[[], int],
        is_lying: Callable[[], bool],
    ) -> None:
        self._bucket = bucket
        self._timeline = timeline
        self._random = random
        self._wall_ns = wall_ns
        self._is_lying = is_lying

    def put(self, name: str, data: Buffer) -> None:
        body = bytes(data), self._wall_ns() // SECOND
        try:
            self._request()
        except StoreFailed:
            if self._random.random() < HALF_DONE_SHARE:
                self._bucket.objects[name] = body
            raise
        self._bucket.objects[name] = body

    def get(self, name: str, start: int, num_bytes: int) -> memoryview:
        self._request()
        if (found := self._bucket.objects.get(name)) is None:
            raise NoObject(name)
        data = found[0][start : start + num_bytes]
        return memoryview(self._lie(name, data) if self._is_lying() else data)

    def walk(self, folder: str = "") -> Iterator[list[Listed]]:
        after = ""
        while True:
            self._request()
            names = sorted(
                name for name in self._bucket.objects if name > after and name.startswith(folder)
            )
            some = names[:LISTED_MAX]
            if some:
                yield [Listed(name, *self._about(name)) for name in some]
            if len(names) == len(some):
                return
            after = some[-1]

    def delete(self, names: list[str]) -> None:
        self._request()
        for name in names:
            self._bucket.objects.pop(name, None)

    def _about(self, name: str) -> tuple[int, int]:
        data, written_s = self._bucket.objects[name]
        return len(data), written_s

    def _request(self) -> None:
        bucket, random = self._bucket, self._random
        if bucket.is_slow and not bucket.is_away:
            duration_ns = random.randrange(SLOW_MIN_NS, SLOW_MAX_NS)
            is_late = duration_ns > REQUEST_MAX_NS
            duration_ns = min(duration_ns, REQUEST_MAX_NS)
            bucket.slow_until_ns = max(bucket.slow_until_ns, self._timeline.now_ns + duration_ns)
            wait_ns(duration_ns)
            if is_late:
                raise StoreFailed("timeout")
        else:
            wait_ns(random.randrange(TIMEOUT_NS if bucket.is_away else CALL_NS) + 1)
        if bucket.is_away:
            raise StoreFailed("no connection")

    def _lie(self, name: str, data: bytes) -> bytes:
        """Values of a run, with other tokens than the block has."""
        run = run_of(name)
        assert run is not None
        num_bytes = HEADER_BYTES + run.page_bytes
        if run.is_packed or len(data) % num_bytes:
            return data
        values = [data[at : at + num_bytes] for at in range(0, len(data), num_bytes)]
        return b"".join(other_header(value) + value[HEADER_BYTES:] for value in values)


def other_header(value: bytes) -> bytes:
    """A value's header, with other tokens."""
    try:
        header = unpack_header(value[:HEADER_BYTES])
    except BadValue:
        return value[:HEADER_BYTES]
    return pack_header(replace(header, tokens=[*header.tokens, 0]))
