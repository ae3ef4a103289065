"""The one interface behind which a batch of a one-shot model runs, and which task a model has."""

import base64
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from services.worker.models.checkpoint import GENERATIVE_ENDS
from shared.errors import ConfigError
from shared.wire.messages import JobInput, OneshotCard, Task

ServedTask = Literal["generate"] | Task
Values = npt.NDArray[np.float32]

ENCODER_ENDS = ("Model", "Encoder", "ForMaskedLM", "ForPreTraining")


class BatchStoppedError(Exception):
    """The run was ended on demand; its inputs have no results."""


class DeviceLostError(Exception):
    """The device computes nothing any more in this process."""


class OneshotModel(Protocol):
    """Runs batches, one at a time, in a thread of its caller's.

    Attributes:
        card: the model, its variants and its profile.
    """

    card: OneshotCard

    def decode(self, job: JobInput, variant: int) -> object:
        """One input from the wire, ready to be batched.

        Raises:
            InvalidRequest: the model cannot take it.
        """
        ...

    def run(self, inputs: Sequence[Any], variant: int, stop: threading.Event) -> Values:
        """Compute a batch.

        Args:
            inputs: what `decode` made of them, all for `variant`.
            stop: set when the result is not wanted any more.

        Returns:
            ``[len(inputs), card.num_values]`` float32.

        Raises:
            BatchStoppedError: `stop` was set and seen in time.
            DeviceLostError: the process is to end.
        """
        ...

    def close(self) -> None:
        """Free its memory; no batch uses it any more."""
        ...


@dataclass(frozen=True, slots=True)
class LoadableOneshot:
    """A model that can be loaded, in a thread beside others.

    Attributes:
        card: as measured when it was loaded before.
        load: raises any error of reading files or of too little memory.
    """

    card: OneshotCard
    load: Callable[[], OneshotModel]


def pack_values(values: Values) -> list[str]:
    """Each row as the wire carries it: base64 of little-endian float32. A row with a number that is
    not finite is no result, and empty.

    >>> pack_values(np.array([[1.0]], np.float32))
    ['AACAPw==']
    """
    rows = np.ascontiguousarray(values, dtype="<f4")
    return [
        base64.b64encode(row.tobytes()).decode("ascii") if is_finite else ""
        for row, is_finite in zip(rows, np.isfinite(rows).all(-1), strict=True)
    ]


def task_of(config: Any, source: str, *, has_pooling: bool) -> ServedTask:
    """What a transformers model is for, by its architecture.

    Args:
        config: the model's `PretrainedConfig`.
        has_pooling: sentence-transformers' files are with it: whatever it is, it embeds.

    Raises:
        ConfigError: it is for something that is not served.
    """
    architecture: str = (config.architectures or [""])[0]
    if architecture.endswith("ForSequenceClassification"):
        return "rerank" if config.num_labels == 1 else "classify"
    if architecture.endswith("ForImageClassification"):
        return "classify"
    if has_pooling:
        return "embed"
    if architecture.endswith(GENERATIVE_ENDS):
        return "generate"
    if architecture.endswith(ENCODER_ENDS):
        return "embed"
    if not architecture:
        return _task_of_type(config.model_type)
    raise ConfigError(
        f"cannot serve {source!r}: {architecture} neither generates, embeds, classifies nor "
        "reranks; SYMPHONY_TASKS can name a task"
    )


def _task_of_type(model_type: str) -> ServedTask:
    """By the kind of model alone: what can fill in masks is an encoder."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return "embed" if model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES else "generate"
