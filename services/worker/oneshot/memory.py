"""Memory of a model in torch: its weights, and what a batch needs beside them."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


def weights_bytes(module: Any) -> int:
    """Bytes of all parameters and buffers; what several share counts once."""
    return sum(storage.nbytes() for storage in _storages(module).values())


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that operations make while it is active.

    Args:
        module: whose weights are not counted.

    Attributes:
        peak: most bytes that were there at one time.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._num_bytes = 0
        self._known = _storages(module)  # kept, so that no other gets an address of theirs
        self._live: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._add, result)
        return result

    def _add(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address, num_bytes = storage._cdata, storage.nbytes()
        if address not in self._live and address not in self._known:
            self._live.add(address)
            self._num_bytes += num_bytes
            self.peak = max(self.peak, self._num_bytes)
            weakref.finalize(storage, self._remove, address, num_bytes).atexit = False
        return tensor

    def _remove(self, address: int, num_bytes: int) -> None:
        self._live.discard(address)
        self._num_bytes -= num_bytes


def _storages(module: Any) -> dict[int, torch.UntypedStorage]:
    tensors = [*module.parameters(), *module.buffers()]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage._cdata: storage for storage in storages}
