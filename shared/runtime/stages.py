"""Stages of a process's start: in its status and reports while they last, and in its log."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from shared.runtime.clock import Clock, SystemClock
from shared.wire.messages import StartStage

log = logging.getLogger(__name__)

STAGES = {
    "import": "importing libraries",
    "load": "loading",
    "compile": "compiling kernels",
    "record": "recording CUDA graphs",
    "measure": "measuring batches",
    "vllm": "starting vLLM",
    "connect": "connecting to the kvstore",
}
"""What each stage does, in words."""


class StartStages:
    """The stage that a process is in. Counted from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stage: StartStage | None = None
        self._began_ns = 0

    @contextmanager
    def stage(self, name: str, model: str = "", num_total: int = 0) -> Iterator[None]:
        """Be in this stage inside. Its end is logged with the seconds that it took."""
        assert name in STAGES, name
        of_model = {"model": model} if model else {}
        log.info("%s begins", name, extra=of_model)
        self._began_ns = self._clock.now_ns()
        self._stage = StartStage(name=name, model=model, num_total=num_total)
        try:
            yield
            if (ended := self.now()) is not None:
                counted = "bytes" if name == "load" else "count"
                done = {counted: ended.num_done} if ended.num_done else {}
                log.info(name, extra={**of_model, **done, "seconds": round(ended.seconds, 3)})
        finally:
            self._stage = None

    def count(self, num: int = 1) -> None:
        """So much more of the stage is done; nothing, between stages."""
        with self._lock:
            if (now := self._stage) is not None:
                self._stage = replace(now, num_done=now.num_done + num)

    def now(self) -> StartStage | None:
        """The stage, if it is in one."""
        if (now := self._stage) is None:
            return None
        return replace(now, seconds=(self._clock.now_ns() - self._began_ns) / 1e9)


UNREPORTED = StartStages(SystemClock())
"""Of what is loaded outside of a worker's start."""


def stage_text(stage: StartStage) -> str:
    """A stage in words, without how far it is.

    >>> stage_text(StartStage(name="load", model="llama"))
    'loading llama'
    """
    words = STAGES.get(stage.name, stage.name)
    if not stage.model:
        return words
    return f"{words} {stage.model}" if stage.name == "load" else f"{words} of {stage.model}"


def count_text(stage: StartStage) -> str:
    """How far a stage is; empty: it does not say.

    >>> count_text(StartStage(name="load", num_done=120_400_000, num_total=269_000_000))
    '120 of 269 MB'
    >>> count_text(StartStage(name="load", num_done=269_000_000, num_total=269_000_000))
    '269 MB read'
    """
    if not stage.num_total:
        return ""
    if stage.name == "load" and stage.num_done >= stage.num_total:
        return f"{stage.num_done / 1e6:.0f} MB read"  # what is left is to prepare its layers
    if stage.name == "load":
        return bytes_text(stage.num_done, stage.num_total)
    return f"{stage.num_done} of {stage.num_total}"


def bytes_text(num_done: int, num_total: int) -> str:
    """
    >>> bytes_text(500_000_000, 14_500_000_000)
    '0.5 of 14.5 GB'
    """
    if num_total >= 10_000_000_000:
        return f"{num_done / 1e9:.1f} of {num_total / 1e9:.1f} GB"
    return f"{num_done / 1e6:.0f} of {num_total / 1e6:.0f} MB"
