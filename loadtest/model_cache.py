"""transformers' own KV cache, under the name that the installed release has for it: ``cache`` since
5.24, ``past_key_values`` before.
"""

from inspect import signature
from typing import Any


def cache_name(model: Any) -> str:
    """Of the argument that takes it, of this model."""
    return "cache" if "cache" in signature(type(model).forward).parameters else "past_key_values"
