"""What a CUDA device brings to the executor for GPUs: streams, graphs, copies and its memory."""

import logging
from collections.abc import Callable
from functools import partial

import torch

from kernels.paged_attention import is_fused, warm_up
from services.worker.device.assist.assistance import PATIENCE_NS
from services.worker.device.assist.cuda_stream import CudaStream
from services.worker.device.assist.orders import Spec
from services.worker.device.assist.stream_crew import StreamCrew
from services.worker.device.base.step import LayerProbe, running
from services.worker.device.copying.cuda_copier import cuda_copier
from services.worker.device.copying.cuda_int8_copier import cuda_int8_copier
from services.worker.device.copying.mover import Moved
from services.worker.device.decoder.loaded_model import LoadedModel
from services.worker.device.gpu.gpu_executor import PREFILL_TOKENS, DeviceApi, GpuExecutor
from services.worker.device.gpu.recorder import cuda_recorder
from shared.errors import SymphonyError

log = logging.getLogger(__name__)


def cuda_executor(
    model: LoadedModel,
    model_id: str,
    num_pages: int,
    turns_max: int,
    on_moved: Callable[[Moved], None],
    *,
    is_recorded: bool = True,
    crew: StreamCrew | None = None,
) -> GpuExecutor:
    """An executor on this process's GPU. Steps run on the device's default stream, whichever
    thread launches them; passes are recorded where our own kernels attend, which read nothing back
    in flight.
    """
    device, form = model.device, model.stored_form
    stream = torch.cuda.default_stream(device)
    make_copier = partial(cuda_copier, compute=stream)
    if form is not None:
        make_copier = partial(cuda_int8_copier, compute=stream, form=form)
    executor = GpuExecutor(
        model,
        model_id,
        num_pages,
        turns_max,
        DeviceApi(make_copier, cuda_recorder(device) if is_recorded and is_fused(device) else None),
        on_moved,
        crew,
    )
    warm_up(model.make_pool(1), model.num_heads)
    return executor


def cuda_crew(spec: Spec, num_helpers: int, device: torch.device) -> StreamCrew | None:
    """Helpers for adapters beside this process's GPU; None: it has no way to wait for them."""
    try:
        stream = CudaStream(torch.cuda.default_stream(device))
    except SymphonyError as error:
        log.warning("no helpers for adapters", extra={"error": str(error)})
        return None
    return StreamCrew(spec, num_helpers, stream, device, PATIENCE_NS)


def free_bytes(model: LoadedModel, turns_max: int) -> int:
    """Device memory that is left beside the weights and what the largest step takes."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tokens = torch.zeros((1, PREFILL_TOKENS), dtype=torch.long, device=model.device)
    positions = torch.arange(PREFILL_TOKENS, device=model.device)[None]
    with torch.inference_mode(), running(LayerProbe()):
        logits = model.module(
            tokens, position_ids=positions, use_cache=False, logits_to_keep=turns_max
        ).logits
        logits.float().softmax(-1).double().cumsum(-1)  # as choosing tokens does
    del logits
    taken = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    return max(torch.cuda.mem_get_info()[0] - taken, 0)
