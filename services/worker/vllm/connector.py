"""Symphony's KV connector for vLLM: in its scheduler's process, and in each rank's.

vLLM imports this module by its name (``kv_connector_module_path``). What it decides is in
`core.vllm.connector`; pages are copied by the same mover as those of our own engine.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec

from services.worker.core.vllm.connector import (
    ConnectorCore,
    LoadOrder,
    Scheduled,
    WorkerGone,
)
from services.worker.core.vllm.loading import RankLoads, RankShape
from services.worker.core.vllm.messages import (
    PARAMS,
    SCHEDULER,
    Attached,
    Closed,
    Detached,
    LoadsMeasured,
    Opened,
    Registered,
    RequestKv,
    Stored,
    ToConnector,
)
from services.worker.core.vllm.stores import StoreOrder
from services.worker.device.copying.copies import PageCopier
from services.worker.device.copying.gate import PageGate
from services.worker.device.copying.lease_lock import LeaseLock
from services.worker.device.copying.mover import KvMover, Loaded, Moved
from services.worker.device.copying.mover import Stored as MoverStored
from services.worker.vllm.cache_pages import CachePages, HostPagesCopier, cache_pages
from services.worker.vllm.link import SOCKET, Connection
from shared.arena import Arena, ArenaError
from shared.blocks import BLOCK_TOKENS, root_key
from shared.errors import ConfigError, MalformedMessage
from shared.ids import DEFAULT_TENANT, SessionId
from shared.owners import owner_key
from shared.wire.messages import decode, pack_ints

log = logging.getLogger(__name__)

SESSION_ID = "session_id"  # of a stock server's `kv_transfer_params`


@dataclass
class Orders(KVConnectorMetadata):  # type: ignore[misc]  # without vLLM it has no type
    """What the scheduler's connector orders of each rank's, with a step."""

    loads: list[LoadOrder] = field(default_factory=list)
    stores: list[StoreOrder] = field(default_factory=list)


class SymphonyConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """See vLLM's `KVConnectorBase_V1`. Loads are asynchronous, between steps; stores hold their
    blocks by reference counts, so that no request is kept back for them.
    """

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return False

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        if (block_size := vllm_config.cache_config.block_size) != BLOCK_TOKENS:
            raise ConfigError(f"--block-size {block_size}: Symphony's blocks have {BLOCK_TOKENS}")
        self._cache_config = kv_cache_config
        self._scheduler: _SchedulerSide | None = None
        self._rank: _RankSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = _SchedulerSide(extra[SOCKET], vllm_config)
        else:
            self._rank = _RankSide(extra[SOCKET], vllm_config)

    # In the scheduler's process.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.bind(_Blocks(gpu_block_pool))

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.on_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        core = self._scheduler.core()
        num = core.match(
            request.request_id, request.all_token_ids, num_computed_tokens, time.monotonic_ns(),
            was_preempted=request.num_preemptions > 0,
        )  # fmt: skip
        return num, bool(num)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        ids = blocks.get_block_ids()[0]
        self._scheduler.core_now.on_allocated(request.request_id, ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        assert self._scheduler is not None
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        over, bad = connector_output.finished_recving, connector_output.invalid_block_ids
        if over or bad:
            self._scheduler.core().on_loaded(sorted(over or ()), set(bad or ()))

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.on_finished(request, block_ids)
        return False, None

    # In a rank's process.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        assert self._rank is not None
        self._rank.register(kv_caches, self._cache_config)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        orders = self._get_connector_metadata()
        assert self._rank is not None and isinstance(orders, Orders)
        self._rank.load(orders.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return None

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        return None

    def wait_for_save(self) -> None:
        orders = self._get_connector_metadata()
        assert self._rank is not None and isinstance(orders, Orders)
        self._rank.store(orders.stores)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        assert self._rank is not None
        return None, self._rank.take_loaded() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self._rank is not None
        return self._rank.take_bad()

    def shutdown(self) -> None:
        for side in (self._rank, self._scheduler):
            if side is not None:
                side.close()


class _Blocks:
    """See `BlockPool`."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.num_blocks = len(pool.blocks)

    def touch(self, blocks: Sequence[int]) -> None:
        self._pool.touch([self._pool.blocks[block] for block in blocks])

    def free(self, blocks: Sequence[int]) -> None:
        self._pool.free_blocks([self._pool.blocks[block] for block in blocks])

    def evict(self, blocks: set[int]) -> None:
        self._pool.evict_blocks(blocks)


class _SchedulerSide:
    """All but the inbox is used by the engine's one thread."""

    def __init__(self, path: str, vllm_config: Any) -> None:
        self._inbox: SimpleQueue[ToConnector | WorkerGone] = SimpleQueue()
        self._link = Connection(path, self._inbox.put, lambda: self._inbox.put(WorkerGone()))
        self._core: ConnectorCore | None = None
        self._requests: dict[str, Any] = {}  # of vLLM's, which we have KV of
        self._link.send(
            Registered(
                rank=SCHEDULER,
                num_ranks=vllm_config.parallel_config.tensor_parallel_size,
                model=vllm_config.model_config.model,
                version=vllm.__version__,
            )
        )

    def bind(self, pool: _Blocks) -> None:
        """The engine is about to run."""
        self._core = ConnectorCore(pool, self._link.send)

    @property
    def core_now(self) -> ConnectorCore:
        """The core, as it was asked last."""
        assert self._core is not None, "vLLM binds its blocks before requests come"
        return self._core

    def core(self) -> ConnectorCore:
        """The core, which knows of every message that has come."""
        core = self.core_now
        while True:
            try:
                core.on_message(self._inbox.get_nowait())
            except Empty:
                return core

    def on_request(self, request: Any) -> None:
        """A request of vLLM's came; those without KV below are left alone."""
        core = self.core()
        kv = stock_kv(request, core.fingerprint) if core.fingerprint else worker_kv(request)
        if kv is not None:
            self._requests[request.request_id] = request
            core.on_request(request.request_id, kv)

    def plan(self, output: Any) -> Orders:
        """A step was scheduled."""
        core, cached = self.core(), output.scheduled_cached_reqs
        new = {each.req_id: each.block_ids[0] for each in output.scheduled_new_reqs}
        grown = {
            request_id: blocks[0]
            for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True)
            if blocks
        }
        step = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            if (request := self._requests.get(request_id)) is None:
                continue
            step.append(
                Scheduled(
                    request_id=request_id,
                    tokens=request.all_token_ids,
                    end=request.num_computed_tokens + num_tokens,
                    blocks=new.get(request_id) or grown.get(request_id, ()),
                    has_all_blocks=request_id in new or request_id in cached.resumed_req_ids,
                )
            )
        loads, stores = core.plan(step, time.monotonic_ns())
        return Orders(loads=loads, stores=stores)

    def on_finished(self, request: Any, block_ids: Sequence[int]) -> None:
        """A request is over."""
        if self._requests.pop(request.request_id, None) is not None:
            self.core().on_finished(
                request.request_id, request.all_token_ids, request.num_computed_tokens, block_ids
            )

    def close(self) -> None:
        self._link.close()


def worker_kv(request: Any) -> RequestKv | None:
    """What our worker says of a request's KV, if it does."""
    data = (request.kv_transfer_params or {}).get(PARAMS)
    if not isinstance(data, str):
        return None
    try:
        return decode(RequestKv, data.encode())
    except MalformedMessage:
        log.exception("a request's KV parameters were not understood")
        return None


def stock_kv(request: Any, fingerprint: str) -> RequestKv | None:
    """How the KV of a stock server's request is kept; None: its tokens alone do not name it."""
    if request.lora_request is not None or request.mm_features or request.prompt_token_ids is None:
        return None
    session_id = (request.kv_transfer_params or {}).get(SESSION_ID)
    session = SessionId(session_id) if isinstance(session_id, str) and session_id else None
    return RequestKv(
        name=request.request_id,
        root=root_key(fingerprint, DEFAULT_TENANT, "", request.cache_salt or "").hex(),
        owner=owner_key(DEFAULT_TENANT, session).hex(),
        must_ask=True,
    )


class _RankSide:
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
        self._link = Connection(path, self._on_message, self._detach)

    def register(self, caches: dict[str, torch.Tensor], cache_config: Any) -> None:
        """The KV cache is there. What cannot be served is for the worker to say, which started
        this process.
        """
        rank = get_tensor_model_parallel_rank()
        try:
            _check_groups(cache_config.kv_cache_groups)
            pages = cache_pages(caches, cache_config.num_blocks)
        except ConfigError as error:
            self._link.send(Registered(rank=rank, error=error.message))
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
        self._link.send(
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
        self._link.close()
        self._behind.close()
        if self._mover is not None:
            self._mover.close()

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
                self._link.send(
                    LoadsMeasured(
                        num_bytes=moved.num_bytes,
                        duration_ns=moved.duration_ns,
                        num_failed=len(moved.bad),
                    )
                )
            case MoverStored(checksums=checksums):
                self._link.send(
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
                self._link.send(Attached(epoch=message.epoch, error=self._attach(message)))
            case Closed():
                self._detach()
                self._link.send(Detached(epoch=message.epoch))

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
        raise ConfigError(
            f"vLLM: of this model's KV cache ({names}) nothing can be kept beyond vLLM: set "
            "SYMPHONY_WRITE_BEHIND=0 to serve it without"
        )


def _copier(pages: CachePages) -> PageCopier:
    if current_platform.is_cpu():
        return HostPagesCopier([layer.numpy() for layer in pages.layers])
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
