"""A GGUF file that is read into a config: what is read, and what has been."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.models.gguf.keys import Metadata
from shared.errors import ConfigError

Vector = NDArray[np.float32]


class Reading:
    """What an architecture's reader works on.

    Attributes:
        keys: the file's metadata.
        shapes: of its tensors, the outermost dimension first.
        config: of transformers, as far as it is read.
        absorbed: tensors that became part of the config.
        remarks: for the user: what the file does not say, and what was taken for it.
    """

    def __init__(
        self, keys: Metadata, shapes: Mapping[str, tuple[int, ...]], load: Callable[[str], Vector]
    ) -> None:
        self.keys = keys
        self.shapes = shapes
        self.config: dict[str, Any] = {}
        self.absorbed: set[str] = set()
        self.remarks: list[str] = []
        self._load = load

    def has(self, tensor: str) -> bool:
        """Whether the file has this tensor."""
        return tensor in self.shapes

    def in_layers(self, part: str) -> bool:
        """Whether a layer has this tensor; that the others have it is checked with all."""
        return any(name.startswith("blk.") and name.endswith(f".{part}") for name in self.shapes)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Its shape.

        Raises:
            ConfigError: the file has none of this name.
        """
        if tensor not in self.shapes:
            raise ConfigError(f"tensor {tensor} is missing")
        return self.shapes[tensor]

    def absorb(self, tensor: str, length: int) -> list[float] | None:
        """Divisors, from a small tensor that goes into the config; None: the file has none.

        Raises:
            ConfigError: it has another length, or numbers that divide nothing.
        """
        if tensor not in self.shapes:
            return None
        if self.shapes[tensor] != (length,):
            raise ConfigError(f"tensor {tensor} has shape {self.shapes[tensor]}, not ({length},)")
        self.absorbed.add(tensor)
        values = self._load(tensor)
        if not (np.isfinite(values) & (values > 0)).all():
            raise ConfigError(f"tensor {tensor} holds what cannot divide a frequency")
        return [float(str(value)) for value in values]
