"""Images are built several at once, and each lands whole in its pages or nowhere."""

from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Barrier, Event, Lock

import numpy as np
import pytest

from services.worker.core.effects import BuildImage
from services.worker.device.copying import image_builder
from services.worker.device.copying.copies import HostCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.image_builder import ImageBuilder, ReadImage
from services.worker.device.copying.mover import Loaded, Moved
from shared.arena import Bytes
from shared.wire.messages import AdapterRef

LAYERS, BLOCKS, PAGE_BYTES = 3, 2, 16
WHOLE = [(layer, block) for layer in range(LAYERS) for block in range(BLOCKS)]
PATIENCE_S = 10


class Pool(HostCopier):
    """Notes what is written, and that nothing is written beside it."""

    def __init__(self) -> None:
        self.bytes = np.zeros((40, PAGE_BYTES), np.uint8)
        super().__init__(self.bytes)
        self.written: list[Bytes] = []
        self._writing = Lock()

    def write(self, pool_pages: list[int], data: Bytes) -> None:
        assert self._writing.acquire(blocking=False), "two write at once"
        self.written.append(data)
        super().write(pool_pages, data)
        self._writing.release()


class Bench:
    """A builder that reads by the given function, and what it reports."""

    def __init__(self, read: ReadImage, num_threads: int = 1) -> None:
        self.pool, self.gate = Pool(), PageGate(40)
        self._moved: Queue[Moved] = Queue()
        self.builder = ImageBuilder(read, self.pool, self.gate, self._moved.put, num_threads)

    def build(
        self, name: str, pages: list[int], places: list[tuple[int, int]] | None = None
    ) -> None:
        adapter = AdapterRef(name=name, adapter_hash=name, ranks={})
        self.builder.submit(BuildImage(adapter, places or WHOLE, pages), "/adapters")

    def outcome(self) -> Loaded:
        moved = self._moved.get(timeout=PATIENCE_S)
        assert isinstance(moved, Loaded)
        return moved


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for each in made:
        each.builder.close()


def image_of(adapter: AdapterRef, folder: Path) -> Bytes:
    """Whose every byte tells its page."""
    assert folder == Path("/adapters") / adapter.adapter_hash
    if adapter.name == "damaged":
        raise OSError("no such file")
    numbers = np.arange(LAYERS * BLOCKS, dtype=np.uint8).reshape(LAYERS, BLOCKS, 1)
    return np.repeat(numbers, PAGE_BYTES, 2)


def test_pages_are_those_asked_for(benches: list[Bench]) -> None:
    bench = Bench(image_of)
    benches.append(bench)
    pages = [7, 3, 9, 4, 1, 30]
    bench.build("whole", pages)
    assert bench.outcome() == Loaded(pages, [])
    assert bench.pool.bytes[pages, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert bench.pool.written[0].base is not None, "all of an image is not copied once more"
    bench.build("part", [5, 6], [(1, 1), (2, 1)])
    assert bench.outcome() == Loaded([5, 6], [])
    assert bench.pool.bytes[[5, 6], 0].tolist() == [3, 5]
    assert bench.gate.has([*pages, 5, 6])


def test_what_cannot_be_read_costs_that_image_alone(benches: list[Bench]) -> None:
    bench = Bench(image_of)
    benches.append(bench)
    bench.build("damaged", [0, 1, 2, 3, 4, 5])
    bench.build("good", [6, 7, 8, 9, 10, 11])
    assert bench.outcome() == Loaded([], [0, 1, 2, 3, 4, 5])
    assert bench.outcome() == Loaded([6, 7, 8, 9, 10, 11], [])
    assert not bench.gate.has([0])


def test_several_are_built_at_once_and_written_one_by_one(benches: list[Bench]) -> None:
    together = Barrier(3)

    def read(adapter: AdapterRef, folder: Path) -> Bytes:
        together.wait(PATIENCE_S)
        return image_of(adapter, folder)

    bench = Bench(read, num_threads=3)
    benches.append(bench)
    for number in range(6):
        bench.build(f"a{number}", list(range(6 * number, 6 * number + 6)))
    done = [bench.outcome() for _ in range(6)]
    assert sorted(page for each in done for page in each.good) == list(range(36))
    assert bench.gate.has(list(range(36)))


def test_what_is_too_much_fails_at_once(
    benches: list[Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, has_begun = Event(), Event()

    def read(adapter: AdapterRef, folder: Path) -> Bytes:
        has_begun.set()
        assert may_go_on.wait(PATIENCE_S)
        return image_of(adapter, folder)

    monkeypatch.setattr(image_builder, "BUILDS_MAX", 1)
    bench = Bench(read)
    benches.append(bench)
    bench.build("a", [0, 1, 2, 3, 4, 5])
    assert has_begun.wait(PATIENCE_S)
    bench.build("b", [6, 7, 8, 9, 10, 11])
    bench.build("c", [12, 13, 14, 15, 16, 17])
    assert bench.outcome() == Loaded([], [12, 13, 14, 15, 16, 17])
    may_go_on.set()
    assert bench.outcome().good == [0, 1, 2, 3, 4, 5]
    assert bench.outcome().good == [6, 7, 8, 9, 10, 11]


def test_what_waits_at_the_end_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, has_begun = Event(), Event()
    read_names: list[str] = []

    def read(adapter: AdapterRef, folder: Path) -> Bytes:
        read_names.append(adapter.name)
        has_begun.set()
        assert may_go_on.wait(PATIENCE_S)
        return image_of(adapter, folder)

    bench = Bench(read)
    bench.build("a", [0, 1, 2, 3, 4, 5])
    assert has_begun.wait(PATIENCE_S)
    bench.build("b", [6, 7, 8, 9, 10, 11])
    builds = bench.builder._builds
    put = builds.put

    def put_the_end(end: None) -> None:
        put(end)
        may_go_on.set()

    monkeypatch.setattr(builds, "put", put_the_end)
    bench.builder.close()
    assert read_names == ["a"]
    assert bench.outcome().good == [0, 1, 2, 3, 4, 5]
