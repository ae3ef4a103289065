"""What a model's own files say of its outer layers, for adapters that bring a copy of one along.

PEFT saves ``lm_head.base_layer.weight`` beside an adapter of the head. The copy is fine if it is
the model's, so its values are compared by their hash; nothing is loaded.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from shared.adapters.config import AdapterInvalid, parse_object
from shared.adapters.tensors import TensorEntry, read_header
from shared.adapters.values import Truncated, read_chunks, values_hash

ONE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
HEADER_BYTES_MAX, INDEX_BYTES_MAX, TENSORS_MAX = 100 << 20, 64 << 20, 1 << 20
# As decoders call what a head that has no weight of its own shares.
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


class BaseWeights(Mapping[str, str]):
    """Name of an outer layer -> `values_hash` of its weight, looked up when it is asked for.

    Args:
        source: the model's folder; nothing is known of another.
    """

    def __init__(self, source: str) -> None:
        self._folder = Path(source)

    def __getitem__(self, name: str) -> str:
        found = None
        with suppress(OSError, AdapterInvalid, Truncated):  # then nothing is known
            found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def _find(self, name: str) -> str | None:
        files = self._files()
        tensor = f"{name}.weight"
        if tensor not in files:
            shared = [each for each in files if each.endswith(EMBEDDINGS)]
            if len(shared) != 1:
                return None
            tensor = shared[0]
        path = self._folder / files[tensor]
        status = path.stat()
        return _hash_of(path, tensor, status.st_mtime_ns, status.st_size)

    def _files(self) -> dict[str, str]:
        """Where each tensor is."""
        index = self._folder / INDEX_FILE
        if not index.is_file():
            entries = _entries(self._folder / ONE_FILE)
            return {entry.name: ONE_FILE for entry in entries}
        with index.open("rb") as file:
            places = parse_object(file.read(INDEX_BYTES_MAX), INDEX_FILE).get("weight_map")
        if not isinstance(places, dict):
            return {}
        return {str(name): Path(str(file)).name for name, file in places.items()}


@lru_cache(maxsize=16)
def _hash_of(path: Path, tensor: str, changed_ns: int, num_bytes: int) -> str | None:
    """Once for each state of a file: a head has hundreds of megabytes."""
    entry = next((each for each in _entries(path) if each.name == tensor), None)
    if entry is None:
        return None
    with path.open("rb") as file:
        return values_hash(read_chunks(file.fileno(), entry), entry.dtype)


def _entries(path: Path) -> list[TensorEntry]:
    with path.open("rb") as file:
        return read_header(file, os.fstat(file.fileno()).st_size, HEADER_BYTES_MAX, TENSORS_MAX)
