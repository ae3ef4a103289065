"""The link to a GPU, without one: pools in host memory, streams that do all at once, and kernels in
Triton's interpreter, in the process that `test_triton_without_a_gpu` starts.
"""

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from services.worker.device.copying.copies import CopyFailed
from services.worker.device.copying.int8_pages import Int8HostCopier, Int8Pages
from shared.arena import Bytes, checksum

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)
PAGES, SHAPE = 6, (2, 2, 64, 8)
AT, TO = [4, 1], [0, 2]


class Stream:
    """Notes which streams and events it waits for."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.priority = priority
        self.behind: list[Any] = []

    def wait_stream(self, stream: "Stream") -> None:
        self.behind.append(stream)

    def wait_event(self, event: "Event") -> None:
        self.behind.append(event)

    def synchronize(self) -> None:
        return None


class Event:
    def __init__(self, *, blocking: bool = False) -> None:
        self.stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        self.stream = stream

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


@pytest.fixture
def copier(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the link, without a device."""
    from kernels.page_sums import triton as kernels
    from services.worker.device.copying import cuda_copier

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(cuda_copier, "pinned", lambda shape, dtype: torch.zeros(shape, dtype=dtype))
    monkeypatch.setattr(cuda_copier, "triton_kernels", lambda package, device: kernels)
    return cuda_copier


def memory(page_bytes: int) -> Bytes:
    return np.full((PAGES, page_bytes), 0xEE, np.uint8)


def test_a_run_is_stored_with_its_checksums_and_comes_back(copier: Any) -> None:
    pool = torch.randn((PAGES, *SHAPE))
    before, arena = pool.clone(), memory(pool[0].nbytes)
    compute = Stream()
    link = copier.CudaLink([pool], compute)
    link.warm_up(pool[0].nbytes)
    store = link.store(AT, arena, TO)
    store.wait()
    assert store.checksums() == [checksum(arena[page]) for page in TO]
    assert (arena[TO] == pool[AT].flatten(1).view(torch.uint8).numpy()).all()
    assert (arena[[1, 3, 4, 5]] == 0xEE).all() and torch.equal(pool, before)
    copy = link.load(arena, TO, [3, 5])
    link.hold([copy])
    assert torch.equal(pool[[3, 5]], before[AT])
    assert compute.behind == [copy.event], "steps wait for loads, and for nothing else"


def test_a_pool_of_several_parts_is_one(copier: Any) -> None:
    parts = [torch.randn((PAGES, *SHAPE)) for _ in range(3)]
    whole = torch.cat(parts)
    arena = memory(parts[0][0].nbytes)
    link = copier.CudaLink(parts, Stream())
    at, to = [2 * PAGES + 1, 0, PAGES, PAGES - 1], [5, 0, 3, 1]
    store = link.store(at, arena, to)
    store.wait()
    assert store.is_over() and store.checksums() == [checksum(arena[page]) for page in to]
    assert (arena[to] == whole[at].flatten(1).view(torch.uint8).numpy()).all()
    link.load(arena, to, [1, PAGES + 2, 2 * PAGES, 2])
    assert torch.equal(torch.cat(parts)[[1, PAGES + 2, 2 * PAGES, 2]], whole[at])
    link.write([PAGES, 2], arena[[5, 3]])
    assert torch.equal(torch.cat(parts)[[PAGES, 2]], whole[[2 * PAGES + 1, PAGES]])


def test_what_steps_wait_for_and_what_is_stored_have_streams_of_their_own(copier: Any) -> None:
    pool = torch.randn((PAGES, *SHAPE))
    arena = memory(pool[0].nbytes)
    link = copier.CudaLink([pool], Stream())
    loaded, stored = link.load(arena, [1], [1]).event.stream, link.store([0], arena, [0])
    assert loaded is not stored.event.stream and loaded.priority < stored.event.stream.priority
    reached = [stored.event.stream]
    for stream in reached:
        reached += [each for each in stream.behind if each not in reached]
    assert link._compute not in reached and loaded not in reached
    assert not loaded.behind


@pytest.mark.parametrize("num_tokens", [64, 9])
def test_int8_pages_are_the_hosts_and_have_their_checksums(copier: Any, num_tokens: int) -> None:
    from services.worker.device.copying.cuda_int8_copier import CudaInt8Link

    form = Int8Pages(torch.Size((4, 64, 8)))
    pool = torch.randn((PAGES, *SHAPE))
    arenas = [memory(form.page_bytes) for _ in range(2)]
    link = CudaInt8Link(pool, Stream(), form)  # type: ignore[arg-type]
    store = link.store(AT, arenas[0], TO, num_tokens)
    store.wait()
    host: Any = SimpleNamespace(pages=arenas[1])
    other = Int8HostCopier(pool, form).store(AT, host, TO, num_tokens)
    other.wait()
    assert (arenas[0] == arenas[1]).all() and store.checksums() == other.checksums()
    pool[4, 0, 0, 0, 0] = torch.nan
    with pytest.raises(CopyFailed):
        link.store(AT, arenas[0], TO, num_tokens).wait()
