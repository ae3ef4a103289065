"""CUDA graphs."""

import torch

from services.worker.device.gpu.recordings import Launch, Recorder

BYTES_MAX = 2 << 30
FREE_SHARE = 0.5  # of what is free at the start, at most


def cuda_recorder(device: torch.device) -> Recorder:
    """Records CUDA graphs that share one memory pool: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    aside = torch.cuda.Stream(device)

    def record(launch: Launch) -> Launch:
        aside.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(aside):
            launch()  # what is made at the first call must not be recorded
            aside.synchronize()
            # Other threads go on copying meanwhile.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                logits = launch()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(aside)

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay

    def free_bytes() -> int:
        return torch.cuda.mem_get_info(device)[0]

    return Recorder(record, free_bytes, min(BYTES_MAX, int(FREE_SHARE * free_bytes())))
