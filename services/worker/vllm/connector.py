"""Symphony's KV connector for vLLM: in its scheduler's process, and in each rank's.

vLLM imports this module by its name (``kv_connector_module_path``). What it decides is in
`core.vllm.connector`; pages are copied by the same mover as those of our own engine.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from services.worker.core.vllm.connector import LoadOrder
from services.worker.core.vllm.stores import StoreOrder
from services.worker.vllm.link import IS_WORKERS, SOCKET
from services.worker.vllm.rank_side import RankSide
from services.worker.vllm.scheduler_side import Blocks, SchedulerSide
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError


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
        self._scheduler: SchedulerSide | None = None
        self._rank: RankSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(
                extra[SOCKET],
                vllm_config,
                vllm.__version__,
                is_workers=bool(extra.get(IS_WORKERS)),
            )
        else:
            self._rank = RankSide(extra[SOCKET], vllm_config)

    # In the scheduler's process.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.bind(Blocks(gpu_block_pool))

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
        loads, stores = self._scheduler.plan(scheduler_output)
        return Orders(loads=loads, stores=stores)

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
