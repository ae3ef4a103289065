"""The KV connector in one of vLLM's ranks: copies pages between its KV cache and the arena."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec

from services.worker.core.vllm.connector import LoadOrder
from services.worker.core.vllm.loading import RankLoads, RankShape
from services.worker.core.vllm.messages import (
    Attached,
    Closed,
    Detached,
    FromConnector,
    LoadsMeasured,
    Opened,
    Registered,
    Stored,
    ToConnector,
)
from services.worker.core.vllm.stores import StoreOrder
from services.worker.device.copying.copies import HostCopier, PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.lease_lock import LeaseLock
from services.worker.device.copying.mover import KvMover, Loaded, Moved
from services.worker.device.copying.mover import Stored as MoverStored
from services.worker.vllm.cache_pages import CachePages, cache_pages
from services.worker.vllm.link import Connection
from shared.arena import Arena, ArenaError
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError
from shared.wire.messages import pack_ints

log = logging.getLogger(__name__)


class RankSide:
    """Copies pages between a rank's KV cache and the arena."""

    def __init__(self, path: str, vllm_config: Any) -> None:
        self._config = vllm_config
        self._lock = threading.Lock()  # of what the mover's threads and the rank's own touch
        self._loads: RankLoads | None = None
        self._shape: RankShape | None = None
        self._mover: KvMover | None = None
        self._lease: LeaseLock | None = None
        self._bad: set[int] = set()
        self._behind = _Behind()
        self._path = path
        self._link: Connection | None = None

    def register(self, caches: dict[str, torch.Tensor], cache_config: Any) -> None:
        """The KV cache is there. What cannot be served is for the worker to say, which started
        this process.
        """
        rank = get_tensor_model_parallel_rank()
        # Not before: the weights are loaded by now, however long that took.
        self._link = Connection(self._path, self._on_message, self._detach)
        try:
            _check_groups(cache_config.kv_cache_groups)
            pages = cache_pages(caches, cache_config.num_blocks)
        except ConfigError as error:
            self._send(Registered(rank=rank, error=error.message))
            log.error("KV stays in vLLM", extra={"error": error.message})
            return
        shape = self._shape = RankShape(
            rank=rank,
            num_ranks=self._config.parallel_config.tensor_parallel_size,
            num_layers=len(pages.layers),
            num_blocks=pages.num_blocks,
        )
        self._loads = RankLoads(shape.num_layers, shape.num_blocks)
        token_rows = 0 if current_platform.is_cpu() else pages.token_rows  # there it is packed
        gate = PageGate(shape.num_layers * shape.num_blocks)
        self._mover = KvMover(_copier(pages), gate, self._on_moved, token_rows=token_rows)
        self._send(
            Registered(
                rank=shape.rank,
                num_ranks=shape.num_ranks,
                num_layers=shape.num_layers,
                num_blocks=shape.num_blocks,
                page_bytes=pages.page_bytes,
                layout=f"{pages.layout}:{_kind(self._config)}",
                token_rows=token_rows,
            )
        )

    # The rank's own thread.

    def load(self, orders: Sequence[LoadOrder]) -> None:
        """Start loads, behind what the device was given until now."""
        if not orders:
            return
        mover, shape, loads = self._parts
        with self._lock:
            for order in orders:
                loads.start(order.request_id, order.blocks)
        runs = [shape.loads(order) for order in orders]
        self._behind.run(lambda: mover.submit_loads(runs))

    def store(self, orders: Sequence[StoreOrder]) -> None:
        """Start stores, behind what the device was given until now."""
        if not orders:
            return
        mover, shape, _ = self._parts
        writes, epoch = [shape.write(order, BLOCK_TOKENS) for order in orders], orders[0].epoch
        self._behind.run(lambda: mover.submit_stores(writes, epoch))

    def take_loaded(self) -> set[str]:
        """Requests whose loads are over; `take_bad` says next what of them is bad."""
        if self._loads is None:
            return set()
        with self._lock:
            over, bad = self._loads.take()
        self._bad |= bad
        return over

    def take_bad(self) -> set[int]:
        """Blocks of those that were not loaded."""
        bad, self._bad = self._bad, set()
        return bad

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._behind.close()
        if self._mover is not None:
            self._mover.close()

    def _send(self, message: FromConnector) -> None:
        assert self._link is not None, "what is sent follows from registering"
        self._link.send(message)

    @property
    def _parts(self) -> tuple[KvMover, RankShape, RankLoads]:
        assert self._mover is not None and self._shape is not None and self._loads is not None
        return self._mover, self._shape, self._loads

    # The mover's threads.

    def _on_moved(self, moved: Moved) -> None:
        _, shape, loads = self._parts
        match moved:
            case Loaded():
                with self._lock:
                    loads.on_moved(moved.good, moved.bad)
                self._send(
                    LoadsMeasured(
                        num_bytes=moved.num_bytes,
                        duration_ns=moved.duration_ns,
                        num_failed=len(moved.bad),
                    )
                )
            case MoverStored(checksums=checksums):
                self._send(
                    Stored(
                        rank=shape.rank,
                        numbers=list(checksums),
                        checksums=[pack_ints(sums, "Q") for sums in checksums.values()],
                    )
                )

    # The thread that hears the worker.

    def _on_message(self, message: ToConnector) -> None:
        match message:
            case Opened():
                self._send(Attached(epoch=message.epoch, error=self._attach(message)))
            case Closed():
                self._detach()
                self._send(Detached(epoch=message.epoch))

    def _attach(self, opened: Opened) -> str:
        """Use this arena; what is wrong with it, if anything."""
        mover, _, _ = self._parts
        self._unlock()
        try:
            self._lease = LeaseLock(opened.lease_path)
            arena = Arena.attach(Path(opened.arena_path))
            mover.prepare(arena)
        except (OSError, ArenaError) as error:
            self._unlock()
            return str(error) or type(error).__name__
        mover.attach(arena, opened.epoch)
        return ""

    def _detach(self) -> None:
        """Write to no arena any more; returns when nothing is being written."""
        if self._mover is not None:
            self._mover.detach()
        self._unlock()

    def _unlock(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None


class _Behind:
    """Runs things when the device has done what it was given before. A device that is the host has
    done it already.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        if not current_platform.is_cpu():
            self._thread = ThreadPoolExecutor(1, "kv-behind")

    def run(self, work: Any) -> None:
        """Run `work`, in order."""
        if self._thread is None:
            work()
            return
        event = torch.cuda.Event(blocking=True)
        event.record()

        def wait() -> None:
            event.synchronize()
            work()

        self._thread.submit(wait).add_done_callback(_raise)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()


def _raise(done: Any) -> None:
    if (error := done.exception()) is not None:
        log.critical("pages cannot be moved any more", exc_info=error)


def _check_groups(groups: Sequence[Any]) -> None:
    """See that each request has all its blocks, and each block all its tokens, until it is over.

    Raises:
        ConfigError: it has not.
    """
    specs = [type(group.kv_cache_spec) for group in groups]
    if len(specs) != 1 or not issubclass(specs[0], FullAttentionSpec):
        names = ", ".join(spec.__name__ for spec in specs)
        raise ConfigError(f"vLLM: this model's KV cache ({names}) does not keep all tokens")


def _copier(pages: CachePages) -> PageCopier:
    if current_platform.is_cpu():
        return HostCopier(*(layer.numpy() for layer in pages.layers))
    from services.worker.device.copying.cuda_copier import CudaLink
    from services.worker.device.copying.piecewise_copier import PiecewiseCopier

    return PiecewiseCopier(CudaLink(pages.layers, torch.cuda.current_stream()))


def _kind(vllm_config: Any) -> str:
    """What else a cache's numbers depend on; on a CPU, the instructions that pages are packed
    for.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    kind = f"{model.dtype}:{cache.cache_dtype}:{model.quantization}"
    if not current_platform.is_cpu():
        return kind
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return f"{kind}:{_get_attn_isa(model.dtype, cache.block_size, model.get_head_size())}"
