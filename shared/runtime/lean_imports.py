"""transformers, without parts of torch that it asks for when imported and that serving never runs.

It marks functions for `torch.compile` and names distributed tensors, with which come the compiler
and SymPy: half of the seconds until a worker has imported everything.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
WRAPPED = f"{COMPILER}._trace_wrapped_higher_order_op"
MODULES = ("transformers.modeling_utils", "transformers.masking_utils")
# Of these, only what trains or shards a model by transformers' own means would be used.
NOT_USED = ("is_torch_distributed_available", "is_scipy_available")


def import_transformers() -> None:
    """Import `MODULES`, of which every model is made.

    With a version of transformers that wants more of the compiler at once, it is imported as ever.
    """
    if {COMPILER, *MODULES} & sys.modules.keys():
        return
    import torch
    from transformers import utils
    from transformers.utils import import_utils

    for module in (utils, import_utils):
        for name in NOT_USED:
            if hasattr(module, name):
                setattr(module, name, _no)
    vars(torch)["_dynamo"] = sys.modules[COMPILER] = Compiler(COMPILER)
    sys.modules[WRAPPED] = _wrapped()
    try:
        for name in MODULES:
            importlib.import_module(name)
    finally:
        del sys.modules[WRAPPED]


class Compiler(ModuleType):
    """In the place of torch's compiler until more is wanted of it than to mark a function for it,
    as operations on tensors of the meta device do, too.
    """

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        """The function as it is, which nothing compiles."""
        return Compiler.disable if function is None else function

    allow_in_graph = assume_constant_result = disable

    def __getattr__(self, name: str) -> Any:
        """Of torch's own, which takes its place; also when one of its modules is imported."""
        if name in {"__spec__", "__file__"}:  # asked of any module
            raise AttributeError(name)
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)


def _no(*_: Any, **__: Any) -> bool:
    return False


def _wrapped() -> ModuleType:
    """The one class that transformers' masks use without the compiler, imported on use."""
    module = ModuleType(WRAPPED)

    def transform(*arguments: Any, **named: Any) -> Any:
        return importlib.import_module(WRAPPED).TransformGetItemToIndex(*arguments, **named)

    vars(module)["TransformGetItemToIndex"] = transform
    return module
