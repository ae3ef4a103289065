"""The one-shot model that every simulated worker serves beside the generative one."""

import threading
from collections.abc import Sequence
from typing import Protocol
from zlib import crc32

import numpy as np

from loadtest.sim.timeline import MS
from services.worker.oneshot.model import BatchStoppedError, Values
from shared.ids import ModelId
from shared.wire.messages import JobInput, OneshotCard, OneshotVariant, unpack_ints

JOB_MODEL = ModelId("e")
SIZE_MAX = 8
SLO_NS = 200 * MS
MODEL_BYTES = 1000


class Host(Protocol):
    """The process that batches run in.

    Attributes:
        spent_ns: by which its clock is ahead while a batch runs.
    """

    spent_ns: int


class SimOneshot:
    """Runs batches that advance its process's clock."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.card = job_card()

    def decode(self, job: JobInput, variant: int) -> list[int]:
        """The input's tokens."""
        del variant
        return unpack_ints(job.tokens)

    def run(self, inputs: Sequence[list[int]], variant: int, stop: threading.Event) -> Values:
        """Compute a batch, if it was not stopped before it began."""
        del variant
        if stop.is_set():
            raise BatchStoppedError
        self._host.spent_ns += batch_ns(len(inputs))
        return np.array([[value_of(tokens)] for tokens in inputs], np.float32)

    def close(self) -> None:
        """Nothing to free."""


def job_card() -> OneshotCard:
    """What schedulers know of the model."""
    times = [batch_ns(size) for size in range(1, SIZE_MAX + 1)]
    return OneshotCard(
        model_id=JOB_MODEL, task="embed", modality="text", source="", fingerprint="e",
        slo_ms=SLO_NS / MS, variants=[OneshotVariant(variant=0, batch_ns=times)], num_values=1,
        static_bytes=MODEL_BYTES,
    )  # fmt: skip


def batch_ns(size: int) -> int:
    """Run time of a batch."""
    return (5 + 2 * size) * MS


def value_of(tokens: Sequence[int]) -> float:
    """The model's result for an input: a number that float32 has."""
    return crc32(bytes(tokens)) % 4096 / 8
