"""Which tensors of a GGUF file become which of a transformers model, and how."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.models.gguf.architectures import Architecture
from cli.models.gguf.reading import Reading
from shared.errors import ConfigError

Array = NDArray[np.float32]
Shape = tuple[int, ...]
TIED = "lm_head.weight"
NAMED_MAX = 3  # tensors in an error


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of the model.

    Attributes:
        name: transformers'.
        shape: of the model's.
        sources: tensors of the file; several are put together, as the rows of all that they give.
        operation: on each of them: see `_apply`.
        index: of the row that it is, or the number of heads.
    """

    name: str
    shape: Shape
    sources: tuple[str, ...]
    operation: str = ""
    index: int = 0

    def build(self, sources: Iterable[Array]) -> Array:
        """Its values, from those of its sources."""
        parts = [self._apply(source) for source in sources]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=parts[0].ndim - 2)

    def _apply(self, source: Array) -> Array:
        match self.operation:
            case "":
                return source
            case "less one":
                return source - 1
            case "transposed":
                return source.T
            case "one row":
                return source.reshape(1, -1)
            case "row":
                row: Array = source[self.index]
                return row
            case "halves":
                pairs = source.reshape(self.index, -1, 2, *source.shape[1:])
                halves: Array = pairs.swapaxes(1, 2).reshape(source.shape)
                return halves
        raise AssertionError(self.operation)

    def shape_of(self, shapes: Mapping[str, Shape]) -> Shape:
        """What `build` will give."""
        parts = [self._shape_of(shapes[source]) for source in self.sources]
        if len(parts) == 1:
            return parts[0]
        axis = len(parts[0]) - 2
        return (*parts[0][:axis], sum(part[axis] for part in parts), *parts[0][axis + 1 :])

    def _shape_of(self, shape: Shape) -> Shape:
        match self.operation:
            case "transposed":
                return shape[::-1]
            case "one row":
                return shape if len(shape) == 2 else (1, *shape)
            case "row":
                return shape[1:]
        return shape


def find_places(
    architecture: Architecture, wanted: Mapping[str, Shape], config: Mapping[str, Any]
) -> list[Place]:
    """A place for each tensor of the model.

    Args:
        wanted: the model's own tensors by name.
    """
    places = []
    layer = re.compile(re.escape(architecture.prefix) + r"(\d+)\.(.+)")
    for name, shape in wanted.items():
        if name == TIED and config["tie_word_embeddings"]:
            continue
        stem, suffix = _split(name)
        block = ""
        names = architecture.outer
        if found := layer.fullmatch(stem):
            block, stem, names = f"blk.{found[1]}.", found[2], architecture.layer
        rule, index = names.get(stem), 0
        if rule is None and stem.rsplit(".", 1)[-1].isdecimal():
            stem, number = stem.rsplit(".", 1)
            rule, index = names.get(stem), int(number)
        if rule is None:
            raise ConfigError(f"no tensor of a GGUF file is known for the model's {name}")
        parts, _, operation = rule.partition("|")
        if suffix == ".bias" and operation not in ("", "halves"):
            operation = ""
        if operation == "halves":
            is_query = stem.endswith("q_proj")
            index = config["num_attention_heads" if is_query else "num_key_value_heads"]
        sources = tuple(f"{block}{part}{suffix}" for part in parts.split(" + "))
        places.append(Place(name, shape, sources, operation, index))
    return places


def check_places(places: Iterable[Place], reading: Reading) -> None:
    """See that each place has its tensors, of its shape, and each tensor a place.

    Raises:
        ConfigError: by the tensor's name.
    """
    used = set(reading.absorbed)
    for place in places:
        if missing := [source for source in place.sources if source not in reading.shapes]:
            raise ConfigError(f"{_tensors(missing)} missing, for the model's {place.name}")
        used.update(place.sources)
        if (shape := place.shape_of(reading.shapes)) != place.shape:
            held = ", ".join(f"{each} {list(reading.shapes[each])}" for each in place.sources)
            raise ConfigError(
                f"tensor {held}: gives {list(shape)}, the model's {place.name} is "
                f"{list(place.shape)}"
            )
    if leftover := sorted(reading.shapes.keys() - used):
        raise ConfigError(f"{_tensors(leftover)} left over: the model has no place for it")


def _split(name: str) -> tuple[str, str]:
    for suffix in (".weight", ".bias"):
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ".weight"


def _tensors(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    plural = "tensor {} is" if len(names) == 1 else "tensors {} are"
    return plural.format(", ".join(names[:NAMED_MAX]) + more)
