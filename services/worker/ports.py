"""What a worker needs of its machine: threads, files, loaded models. A simulation has its own.

The bus, the clocks and the tracer come with `shared.service.Runtime`.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from services.worker.config import WorkerConfig
from services.worker.core.engine_limits import EngineLimits
from services.worker.device.base.executor import Executor
from services.worker.device.copying.lease_lock import LeaseLock
from services.worker.device.copying.mover import Moved
from services.worker.device.thread import DeviceThread
from services.worker.oneshot.model import LoadableOneshot, OneshotModel
from services.worker.vllm.protocol import VllmEngine
from shared.arena import Arena
from shared.runtime.dying import die, die_within

OnMoved: TypeAlias = Callable[[Moved], None]


class Lock(Protocol):
    """A file that is locked until it is closed, or its process dies."""

    def close(self) -> None: ...


class HostFiles(Protocol):
    """The files that a worker shares with the kvstore of its host."""

    def attach(self, path: str) -> Arena:
        """Map the arena.

        Raises:
            ArenaError: not an arena of this release.
            OSError: no such file.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Lock a file, which is made if it is not there.

        Raises:
            OSError: it cannot be opened.
        """
        ...

    def has_adapter(self, folder: str) -> bool:
        """Whether an adapter's files are there."""
        ...


@dataclass(frozen=True, slots=True)
class TextModel:
    """A loaded generative model.

    Attributes:
        number: of the model among all of this worker.
    """

    number: int
    executor: Executor


@dataclass(frozen=True, slots=True)
class VllmModel:
    """A generative model that vLLM has loaded."""

    engine: VllmEngine


LoadModels: TypeAlias = Callable[
    [WorkerConfig, DeviceThread, Callable[[str], OnMoved]],
    AsyncIterator[TextModel | VllmModel | OneshotModel | LoadableOneshot],
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts:
    """What a worker gets from its machine.

    Attributes:
        load: gives every model of the configuration once it is loaded; its third argument gives
            the callback for the page copies of the model of this name, callable from any thread.
        pid: of the process, as reports name it.
        on_stuck: called with the reason when a step does not end: ends the process.
        die_within: called with seconds when the worker has failed: ends the process then, if it has
            not ended in order.
        limits: of engines, where neither settings nor the model say.
    """

    thread: DeviceThread
    files: HostFiles
    load: LoadModels
    pid: int
    on_stuck: Callable[[str], None] = die
    die_within: Callable[[float], None] = die_within
    limits: EngineLimits = field(default_factory=lambda: EngineLimits(max_model_len=0))


class SharedFiles:
    """The machine's file system."""

    def attach(self, path: str) -> Arena:
        return Arena.attach(Path(path))

    def lock(self, path: str) -> Lock:
        return LeaseLock(path)

    def has_adapter(self, folder: str) -> bool:
        return Path(folder).is_dir()
