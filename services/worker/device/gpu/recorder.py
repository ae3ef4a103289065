"""CUDA graphs."""

from contextlib import suppress

import torch

from services.worker.device.gpu.recordings import Launch, Recorder

BYTES_MAX = 2 << 30


class CudaRecorder:
    """Records CUDA graphs that share one memory pool: only one of them runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._aside = torch.cuda.Stream(device)

    def record(self, launch: Launch) -> Launch:
        """See `Recorder`."""
        stream = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(stream)
        try:
            with torch.cuda.stream(self._aside):
                launch()  # what is made at the first call must not be recorded
                self._aside.synchronize()
                graph, logits = self._capture(launch)
        finally:
            stream.wait_stream(self._aside)

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay

    def free_bytes(self) -> int:
        """Of the device."""
        return torch.cuda.mem_get_info(self._device)[0]

    def _capture(self, launch: Launch) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Other threads go on copying meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            logits = launch()
            graph.capture_end()
        except BaseException:
            self._abandon(graph)
            raise
        return graph, logits

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed. The allocator goes on giving from its pool then, and frees
        nothing for others, until that is ended too."""
        with suppress(Exception):
            graph.capture_end()
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(self._device_index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def _device_index(self) -> int:
        index = self._device.index
        return torch.cuda.current_device() if index is None else index


def cuda_recorder(device: torch.device) -> Recorder:
    """Of a device."""
    cuda = CudaRecorder(device)
    return Recorder(cuda.record, cuda.free_bytes, BYTES_MAX)
