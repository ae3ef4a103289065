"""The metadata of a GGUF file, of which every key must be accounted for."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shared.errors import ConfigError

SHOWN_CHARACTERS = 60

# Namespaces of llama.cpp that mean something else than a language model, or that change one.
MEANINGFUL = ("adapter.", "clip.", "diffusion.", "xielu.", "tokenizer.")

# Values at which a key that an architecture does not read changes nothing.
NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.shared_kv_layers": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_feed_forward_length": (0,),
    "expert_gating_func": (0,),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
}


class Metadata:
    """Keys and values of one file; `finish` refuses the file for a key that nothing has asked for.

    Args:
        fields: by full key; numbers, texts, and lists of them.
        namespace: of the keys that belong to the architecture, without the dot.
    """

    def __init__(self, fields: Mapping[str, Any], namespace: str) -> None:
        self._fields = fields
        self._left = set(fields)
        self.namespace = namespace

    def _full(self, key: str) -> str:
        is_full = key.startswith(("general.", "tokenizer.", "split."))
        return key if is_full else f"{self.namespace}.{key}"

    def has(self, key: str) -> bool:
        """Whether the file has it; asking does not account for it."""
        return self._full(key) in self._fields

    def value(self, key: str, default: Any = None) -> Any:
        """A key's value as it is, or the default."""
        full = self._full(key)
        self._left.discard(full)
        return self._fields.get(full, default)

    def ignore(self, *keys: str) -> None:
        """Account for keys that change nothing."""
        self._left.difference_update(map(self._full, keys))

    def ignore_under(self, *beginnings: str) -> None:
        """Account for all keys that begin so, and change nothing."""
        full = tuple(map(self._full, beginnings))
        self._left = {key for key in self._left if not key.startswith(full)}

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number, the same for all layers if there is one a layer.

        Raises:
            ConfigError: it is none, or it is missing and there is no default.
        """
        value = self._number(key, default)
        if value != int(value):
            raise self.refusal(key, "is not a whole number")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number; one that was stored in 32 bits becomes the decimal it was written as."""
        value = self._number(key, default)
        return float(value if isinstance(value, int) else str(np.float32(value)))

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.refusal(key, "is neither true nor false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text.

        Raises:
            ConfigError: it is none, or it is missing and there is no default.
        """
        value = self.value(key, default)
        if value is None:
            raise self.refusal(key, "is missing")
        if not isinstance(value, str):
            raise self.refusal(key, "is not a text")
        return value

    def require(self, key: str, *allowed: Any, why: str) -> None:
        """Account for a key that changes nothing at these values, and refuse it at others."""
        value = self.value(key)
        if isinstance(value, float):
            value = self.number(key)
        if value is not None and value not in allowed:
            raise self.refusal(key, why)

    def refusal(self, key: str, why: str) -> ConfigError:
        """What to raise for a key."""
        full = self._full(key)
        if full not in self._fields:
            return ConfigError(f"metadata key {full} {why}")
        return ConfigError(f"metadata key {full} = {shown(self._fields[full])}: {why}")

    def require_neutral(self) -> None:
        """Account for factors and limits that nothing has read, where they change nothing.

        Raises:
            ConfigError: one would change what the model computes.
        """
        for key, allowed in NEUTRAL.items():
            if self._full(key) in self._left:
                self.require(key, *allowed, why="is not supported for this architecture")

    def finish(self, architectures: Iterable[str]) -> None:
        """Refuse what is left.

        Args:
            architectures: whose keys are not expected in this file.

        Raises:
            ConfigError: a key was not accounted for; by its name and value.
        """
        namespaces = (f"{self.namespace}.", *MEANINGFUL, *(f"{name}." for name in architectures))
        for key in sorted(self._left):
            if key.startswith(namespaces):
                raise ConfigError(
                    f"metadata key {key} = {shown(self._fields[key])}: is not known here, and may "
                    "change what the model computes"
                )
            # Others are of programs that write or quantize files (`general.`, `quantize.`,
            # `imatrix.`, a vendor's own): no reader computes by them.

    def _number(self, key: str, default: float | None) -> int | float:
        value = self.value(key, default)
        if value is None:
            raise self.refusal(key, "is missing")
        if isinstance(value, list) and value:
            if any(each != value[0] for each in value):
                raise self.refusal(key, "differs between layers, which is not supported")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refusal(key, "is not a number")
        return value


def shown(value: Any) -> str:
    """A value in an error."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
