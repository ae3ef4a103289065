"""``python -m loadtest.papers.kernel_worker KERNEL TIMES``: a worker whose steps take what those of
a kernel do, so many times as long. All else is the production worker's, but for the kvstore, which
it does not use: adapters are built where they are asked for.
"""

import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from math import ceil

from loadtest.papers.kernels import KERNELS, Kernel
from loadtest.papers.llm_servers import MS, M
from services.worker.config import WorkerConfig
from services.worker.core.adapters.image import NO_LINE
from services.worker.core.effects import BuildImage
from services.worker.core.step import StepPlan
from services.worker.device.base.executor import Finished
from services.worker.device.copying.copies import HostCopier
from services.worker.device.copying.image_builder import ImageBuilder
from services.worker.device.emulated import EmulatedExecutor
from services.worker.device.thread import DeviceThread
from services.worker.load import demo_folder
from services.worker.models.demo_model import make_demo_model
from services.worker.ports import OnMoved, TextModel
from services.worker.service import Worker, machine_ports
from shared.profiles import LatencyProfile
from shared.service import Runtime, run

NUM_KV_TOKENS = 400_000  # more than is ever needed, with all adapters


class _Builder(ImageBuilder):
    """Needs no files."""

    def submit(self, build: BuildImage, folder: str) -> None:
        super().submit(build, folder or "none")


class KernelExecutor(EmulatedExecutor):
    """Its steps take as long as those of a kernel, by the ranks of their rows.

    Time is the device's, as of a GPU's events: a step that was ready in time begins when the one
    before it ends, however late the machine lets this process know.
    """

    def __init__(
        self, kernel: Kernel, profile: LatencyProfile, source: str, on_moved: OnMoved
    ) -> None:
        super().__init__(profile, source, on_moved)
        self._kernel = kernel
        self._began_ns = self._free_at_ns = 0
        self.builder.close()
        copier = HostCopier(self._bytes)
        self.builder = _Builder(self._make_image, copier, self.mover.gate, on_moved)

    def launch(self, plan: StepPlan) -> Finished:
        finished = super().launch(plan)
        result = finished.result()
        result.started_at_ns = self._began_ns
        result.duration_ns = self._free_at_ns - self._began_ns
        return finished

    def _take_time(self, plan: StepPlan, started_ns: int) -> None:
        lines: list[int] = plan.adapters.tolist()
        ranks = [max(self._adapters[each].ranks.values()) for each in lines if each != NO_LINE]
        was_ready = len(plan.following) > 0  # planned while the last one ran
        self._began_ns = self._free_at_ns if was_ready else started_ns
        self._free_at_ns = self._began_ns + ceil(
            self._kernel.ms(ranks, plan.num_prefill_tokens) * MS
        )
        left_s = (self._free_at_ns - time.monotonic_ns()) / 1e9
        if left_s > 0:
            time.sleep(left_s)


async def load(
    kernel: Kernel, config: WorkerConfig, _: DeviceThread, on_moved: Callable[[str], OnMoved]
) -> AsyncIterator[TextModel]:
    """The one model."""
    folder = make_demo_model(demo_folder(config.data_dir))
    profile = LatencyProfile(
        name=M, base_ms=kernel.base_ms, prefill_ms_per_token=kernel.token_ms,
        decode_ms_per_turn=0.0, num_layers=2, kv_bytes_per_token=64, max_model_len=4096,
        num_kv_tokens=NUM_KV_TOKENS,
    )  # fmt: skip
    yield TextModel(0, KernelExecutor(kernel, profile, str(folder), on_moved(profile.name)))


async def main(kernel: Kernel, runtime: Runtime, config: WorkerConfig) -> None:
    """The production worker's, with this model."""
    ports = replace(machine_ports(runtime.stages), load=partial(load, kernel))
    await Worker(runtime, config.model_copy(update={"write_behind": False}), ports).serve()


if __name__ == "__main__":
    name, times = sys.argv[1:]
    run("worker", WorkerConfig, partial(main, KERNELS[name].slower(float(times))))
