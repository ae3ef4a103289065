"""LoRA adapters on the wire: what a model takes, and which one a turn runs on."""

from collections.abc import Iterable
from dataclasses import dataclass, field

RANK_MAX = 256
HASH_CHARS = 32  # of an adapter's hash: hex of 128 bits
ADAPTERS_TOLD_MAX = 4096  # in one report


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraTarget:
    """A linear layer that an adapter may add to.

    Attributes:
        name: in each decoder layer, such as ``self_attn.q_proj``; of an outer one, in the model.
    """

    name: str
    num_in: int  # columns of its weight
    num_out: int  # rows of its weight


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraCard:
    """What adapters a model takes, and how their images lie in its pages.

    A target is called by its number: those of every layer first, then the outer ones.

    Attributes:
        layers_path: module ``{layers_path}.{i}`` is decoder layer `i`.
        targets: linear layers of each decoder layer, all of them of the same shape in every one.
        outer: linear layers outside of those, such as ``lm_head``.
        element_bytes: of the model's dtype.
        dtype: the model's, in torch's words; empty: not known.
        page_bytes: of one KV page.
    """

    layers_path: str
    num_layers: int
    element_bytes: int
    page_bytes: int
    targets: list[LoraTarget]
    outer: list[LoraTarget] = field(default_factory=list)
    rank_max: int = RANK_MAX  # adapters with higher ranks are refused
    dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRef:
    """The adapter that a turn runs on: fixed when the turn arrives, whatever becomes of the name.

    Attributes:
        adapter_hash: of its weights and scales.
        name: by which it was asked for; for logs.
        lora_rank: the largest of its ranks.
        ranks: of each target that it has, the largest of all layers, by name.
        image_bytes: of its image in the model's pages.
    """

    adapter_hash: str
    name: str = ""
    lora_rank: int = 0
    ranks: dict[str, int] = field(default_factory=dict)
    image_bytes: int = 0


def pack_hashes(hashes: Iterable[str]) -> str:
    """Hashes of adapters as one text, for reports."""
    return "".join(hashes)


def unpack_hashes(text: str) -> frozenset[str]:
    """Inverse of `pack_hashes`; of too many the first, and nothing of a part of one.

    >>> sorted(unpack_hashes(pack_hashes(["a" * 32, "b" * 32]) + "c")) == ["a" * 32, "b" * 32]
    True
    """
    num = min(len(text) // HASH_CHARS, ADAPTERS_TOLD_MAX)
    return frozenset(text[at * HASH_CHARS : (at + 1) * HASH_CHARS] for at in range(num))
