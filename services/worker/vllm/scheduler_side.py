"""The KV connector in vLLM's scheduler: what vLLM says, as the core takes it."""

import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from services.worker.core.vllm.connector import (
    ConnectorCore,
    LoadOrder,
    Scheduled,
    WorkerGone,
)
from services.worker.core.vllm.messages import SCHEDULER, Registered, ToConnector
from services.worker.core.vllm.request_kv import stock_kv, worker_kv
from services.worker.core.vllm.stores import StoreOrder
from services.worker.vllm.link import Connection


class Blocks:
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


class SchedulerSide:
    """All but the inbox is used by the engine's one thread.

    Args:
        is_workers: see `IS_WORKERS`.
    """

    def __init__(self, path: str, vllm_config: Any, version: str, *, is_workers: bool) -> None:
        self._is_workers = is_workers
        self._inbox: SimpleQueue[ToConnector | WorkerGone] = SimpleQueue()
        self._link = Connection(path, self._inbox.put, lambda: self._inbox.put(WorkerGone()))
        self._core: ConnectorCore | None = None
        self._step_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._requests: dict[str, Any] = {}  # of vLLM's, which we have KV of
        self._link.send(
            Registered(
                rank=SCHEDULER,
                num_ranks=vllm_config.parallel_config.tensor_parallel_size,
                model=vllm_config.model_config.model,
                version=version,
            )
        )

    def bind(self, pool: Blocks) -> None:
        """The engine is about to run."""
        self._core = ConnectorCore(pool, self._link.send, self._step_tokens)

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
        if self._is_workers:
            kv = worker_kv(request)
        else:  # whose name is not known before the sidecar has its arena
            kv = stock_kv(request, core.fingerprint) if core.fingerprint else None
        if kv is not None:
            self._requests[request.request_id] = request
            core.on_request(request.request_id, kv)

    def plan(self, output: Any) -> tuple[list[LoadOrder], list[StoreOrder]]:
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
        return core.plan(step, time.monotonic_ns())

    def on_finished(self, request: Any, block_ids: Sequence[int]) -> None:
        """A request is over."""
        if self._requests.pop(request.request_id, None) is not None:
            self.core().on_finished(
                request.request_id, request.all_token_ids, request.num_computed_tokens, block_ids
            )

    def close(self) -> None:
        self._link.close()
