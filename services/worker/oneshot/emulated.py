"""A one-shot model that is not there: its batches take exactly the time of a latency profile."""

import threading
import time
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from services.worker.oneshot.model import BatchStoppedError, Values
from shared.errors import InvalidRequest
from shared.ids import ModelId
from shared.wire.messages import JobInput, OneshotCard, OneshotVariant
from shared.zoo import ZooModel

NUM_VALUES = 8
BATCH_MAX = 256


def emulated_fingerprint(name: str) -> str:
    """What stands for the weights of an emulated model."""
    return f"emulated-{name}-1"


class EmulatedOneshot:
    """Takes the profile's time; says of every input a hash of it.

    Args:
        source: folder with a tokenizer.
        batch_max: largest batch; 0: the largest whose run time is within the model's target.
    """

    def __init__(
        self, profile: ZooModel, source: str, batch_max: int = 0, created: int = 0
    ) -> None:
        self._profile = profile
        size_max = batch_max or min(max(profile.size_within(profile.slo_ms), 1), BATCH_MAX)
        batch_ns = [round(profile.batch_ms(size) * 1e6) for size in range(1, size_max + 1)]
        self.card = OneshotCard(
            model_id=ModelId(profile.name),
            task="embed",
            modality="text",
            source=source,
            fingerprint=emulated_fingerprint(profile.name),
            slo_ms=profile.slo_ms,
            variants=[OneshotVariant(variant=0, batch_ns=batch_ns)],
            num_values=NUM_VALUES,
            created=created,
            emulated=True,
        )

    def decode(self, job: JobInput, variant: int) -> bytes:
        """The input's hash."""
        if not (job.tokens or job.pixels):
            raise InvalidRequest("the input is empty")
        digest = blake2b(digest_size=4 * NUM_VALUES)
        for part in (job.tokens, job.segments, job.pixels):
            digest.update(f"{len(part)}:{part}".encode())
        return digest.digest()

    def run(self, inputs: Sequence[bytes], variant: int, stop: threading.Event) -> Values:
        """See `OneshotModel.run`."""
        end_ns = time.monotonic_ns() + round(self._profile.batch_ms(len(inputs)) * 1e6)
        words = np.frombuffer(b"".join(inputs), "<u4").reshape(len(inputs), NUM_VALUES)
        values = words.astype(np.float64) / 2.0**31 - 1.0
        left_s = (end_ns - time.monotonic_ns()) / 1e9
        if stop.wait(max(left_s, 0.0)):
            raise BatchStoppedError
        return values.astype(np.float32)

    def close(self) -> None:
        """It takes no memory."""
