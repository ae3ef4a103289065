"""A model's config, cut down until the model can be computed in a moment.

What makes a family what it is stays: kinds of layers, ratios of heads, odd and even sizes, shares
of rotary dimensions, kinds of scaling. What costs goes: width, depth, experts, vocabulary. Borders
that only long prompts reach (windows, chunks, the length a rotary embedding was made for) move to
where short prompts cross them.
"""

import copy
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedConfig

Level = Literal["all", "all but head sizes", "all but attention", "layers and vocabulary"]
LEVELS: tuple[Level, ...] = (
    "all",
    "all but head sizes",
    "all but attention",
    "layers and vocabulary",
)

VOCAB = 160
BORDER = 48
POSITIONS = 192  # so few that all of them are computed
ORIGINAL_POSITIONS = 64  # that a rotary embedding was made for
LAYERS_MAX = 8
HEADS_MAX = 4
HEAD_DIM_MAX = 32
WIDE, NARROW = 96, 32  # of MLPs and of experts
EXPERTS_MAX, EXPERTS_USED_MAX = 8, 2
GROUPS_MAX = 4

_HEADS = re.compile(
    r"(n|num|swa_num|num_global|attention|(en|de)coder_attention|kv_n|num_kv|index_n)"
    r"(_attention|_key_value|_kv)?_heads?|attention_heads"
)
_KV_HEADS = re.compile(r".*(kv|key_value).*")
_HEAD_DIMS = re.compile(r"(.*_)?head_dim|rotary_dim|kv_channels|d_head|dim_head|rotary_ndims")
_HIDDEN = re.compile(
    r"hidden_size|d_model|n_embd|embedding_size|word_embed_proj_dim|emb_dim|backbone_hidden_size"
)
_MLPS = re.compile(
    r"(.*_)?(intermediate_size|ffn_dim|hidden_dim|ffn_hidden_size|mlp_dim)(_mlp)?"
    r"|n_inner|d_inner|dff|d_ff|dim_ff"
)
_RANKS = re.compile(r"(q|kv|o)_lora_rank|laurel_rank|hidden_size_per_layer_input")
_EXPERTS = re.compile(
    r"num_experts|n_routed_experts|num_local_experts|moe_num_experts|zero_expert_num"
)
_EXPERTS_USED = re.compile(r"num_experts_per_tok|moe_k|moe_topk|moe_top_k|topk_group")
_GROUPS = re.compile(r"n_group")
_VOCAB = re.compile(r"(.*_)?vocab_size(_per_layer_input|_base)?|.*_group_vocab")
_BORDERS = re.compile(
    r".*window(_size|_len)?|local_attention.*|.*chunk_?size|(?!index).*block_size|index_topk"
)
_FLOORS = re.compile(r"floor_scale|log_scaling_n_floor|index_block_size")
_FEW = re.compile(r"index_topk_blocks")  # of what a floor counts
_POSITIONS = re.compile(
    r"max_position_embeddings|n_positions|max_seq_len|n_ctx|seq_length|max_target_positions"
)
_LAYERS = re.compile(r"num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|depth|num_blocks")
_PERIODS = re.compile(
    r"_?sliding_window_pattern|.*_(period|interval|step|offset|every_n_layers)"
    r"|first_k_dense_replace|num_dense_layers|moe_layer_start_index"
)
_INDICES = re.compile(r".*(_indices|_idxs|_layers|layers_idx)")
_NAMES = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype"})
_TOKEN = ("_token_id", "_token_index")
_FACTORS = ("short_factor", "long_factor")


def cut(config: PreTrainedConfig, level: Level) -> PreTrainedConfig:
    """A smaller config of the same family; the given one stays as it is.

    Args:
        level: how much is cut. A family whose sizes depend on each other in ways not known here
            cannot be built from the smallest.
    """
    small = copy.deepcopy(config)
    text = small.get_text_config()
    ids = sorted({each for found in special_tokens(config).values() for each in found})
    places = {each: VOCAB - 1 - at for at, each in enumerate(e for e in ids if e >= VOCAB)}
    for part in _parts(small):
        is_text = part is text or part is small
        _cut_layers(part)
        _cut_tokens(part, places)
        if is_text:
            _cut_borders(part)
        if level != "layers and vocabulary":
            _cut_mlps(part)
        if is_text and level in {"all", "all but head sizes"}:
            _cut_widths(part, keep_head_sizes=level != "all")
    return small


@dataclass(frozen=True, slots=True)
class Candidate:
    """A small config to try, at a level of cutting."""

    level: Level
    config: PreTrainedConfig

    def identity(self) -> dict[str, Any]:
        """All of it but what its model does not depend on."""
        found: dict[str, Any] = _without(self.config.to_dict(), _NAMES)
        return found


def cut_candidates(config: PreTrainedConfig) -> list[Candidate]:
    """Small configs, the smallest first. One that cannot be made is left out."""
    found: list[Candidate] = []
    for level in LEVELS:
        with suppress(Exception):  # configs of strangers, some of which refuse to be read or set
            found.append(Candidate(level, cut(config, level)))
    return found


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {
            str(name): _without(each, names) for name, each in value.items() if name not in names
        }
    return [_without(each, names) for each in value] if isinstance(value, list | tuple) else value


def special_tokens(config: PreTrainedConfig) -> dict[str, list[int]]:
    """Ids that mean more to the model than a piece of text, by their names in the config."""
    found: dict[str, list[int]] = {}
    for part in _parts(config):
        for name, value in _values(part):
            if name.endswith(_TOKEN):
                found.setdefault(name, []).extend(_ints(value))
    return found


def _parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A config and those within it."""
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PreTrainedConfig):
            yield from _parts(value)


def _values(config: PreTrainedConfig) -> list[tuple[str, Any]]:
    return [item for item in vars(config).items() if not item[0].startswith("_attn")]


def _ints(value: object) -> list[int]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool)]


def _change(config: PreTrainedConfig, names: re.Pattern[str], change: Callable[[int], int]) -> None:
    """Apply `change` to every integer above 0 under such a name, also to those of lists."""
    for name, value in _values(config):
        if not names.fullmatch(name):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            setattr(config, name, change(value))
        elif isinstance(value, list | tuple) and value and len(_ints(value)) == len(value):
            setattr(config, name, type(value)(change(each) if each > 0 else each for each in value))


def _at_most(limit: int) -> Callable[[int], int]:
    return lambda value: min(value, limit)


# Layers.


def _cut_layers(config: PreTrainedConfig) -> None:
    counts = [
        (name, value)
        for name, value in _values(config)
        if _LAYERS.fullmatch(name) and isinstance(value, int) and value > 0
    ]
    if not counts:
        return
    num_layers = _own_count(config, counts)
    kept = _kept_layers(config, num_layers)
    for name, value in _values(config):
        if name.endswith("_token_id") or not isinstance(value, list | tuple):
            continue
        if len(value) == num_layers and num_layers > 1:
            setattr(config, name, type(value)(value[layer] for layer in kept))
        elif _INDICES.fullmatch(name) and len(_ints(value)) == len(value):
            places = {layer: place for place, layer in enumerate(kept)}
            setattr(config, name, type(value)(places[each] for each in value if each in places))
    if shared := vars(config).get("num_kv_shared_layers") or 0:
        config.num_kv_shared_layers = sum(layer >= num_layers - shared for layer in kept)
    if (first := vars(config).get("max_window_layers")) is not None:
        config.max_window_layers = sum(layer < first for layer in kept)
    for name, value in counts:
        setattr(config, name, min(value, len(kept)))


def _own_count(config: PreTrainedConfig, counts: list[tuple[str, int]]) -> int:
    own = dict(counts)
    for name in ("num_hidden_layers", "decoder_layers", "n_layer", "n_layers", "num_layers"):
        if name in own:
            return own[name]
    return counts[0][1]


def _kept_layers(config: PreTrainedConfig, num_layers: int) -> list[int]:
    """Numbers of the layers that stay: the first few if all kinds are among them, or else one of
    each kind."""
    lists = [
        value
        for name, value in _values(config)
        if isinstance(value, list | tuple) and len(value) == num_layers
        if not name.endswith("_token_id")
    ]
    kinds = [repr([each[layer] for each in lists]) for layer in range(num_layers)]
    firsts = sorted(kinds.index(kind) for kind in set(kinds))
    periods = [
        value + 1
        for name, value in _values(config)
        if _PERIODS.fullmatch(name) and isinstance(value, int) and value < num_layers
    ]
    num_first = min(max(2, firsts[-1] + 1, *periods, 2), num_layers)
    shared = vars(config).get("num_kv_shared_layers") or 0
    if shared:
        own = sorted(kinds.index(kind) for kind in set(kinds[: num_layers - shared]))
        num_own = min(own[-1] + 1, LAYERS_MAX // 2)
        lasts = range(num_layers - shared, min(num_layers - shared + num_own, num_layers))
        return [*range(num_own), *lasts]
    if num_first <= LAYERS_MAX:
        return list(range(num_first))
    return firsts[:LAYERS_MAX] if len(firsts) > 1 else list(range(2))


# Vocabulary and borders.


def _cut_tokens(config: PreTrainedConfig, places: dict[int, int]) -> None:
    """Special tokens that are cut off get ids of their own among those that are left."""
    for name, value in _values(config):
        if name.endswith(_TOKEN):
            if isinstance(value, list):
                setattr(config, name, [places.get(each, each) for each in _ints(value)])
            elif value in places:
                setattr(config, name, places[value])
    _change(config, _VOCAB, _at_most(VOCAB))


def _cut_borders(config: PreTrainedConfig) -> None:
    longest = vars(config).get("max_position_embeddings")
    _change(config, _BORDERS, lambda value: _border(value, longest))
    _change(config, _FLOORS, _at_most(BORDER // 3))
    _change(config, _FEW, _at_most(2))
    originals = _rope_dicts(config)
    own = vars(config).get(ORIGINAL)
    found = [own] if isinstance(own, int) else []
    found += [v for d in originals if isinstance(v := d.get(ORIGINAL), int)]
    limit, original = POSITIONS, ORIGINAL_POSITIONS
    if found and isinstance(longest, int):
        # What is scaled, is scaled by as much as before.
        scale = max(longest / max(found[0], 1), 0.01)
        original = max(original, math.ceil(POSITIONS / scale))
        limit = round(original * scale)
    _change(config, _POSITIONS, _at_most(limit))
    if isinstance(own, int):
        config.original_max_position_embeddings = min(own, original)
    for each in originals:
        for name, most in ((ORIGINAL, original), ("max_position_embeddings", limit)):
            if isinstance(value := each.get(name), int):
                each[name] = min(value, most)


def _border(value: int, longest: object) -> int:
    """Where a window or a chunk ends now: beyond the longest prompt, if it did before.

    >>> _border(4096, 32768), _border(32768, 32768), _border(16, 2048)
    (48, 192, 16)
    """
    is_crossed = not isinstance(longest, int) or value < longest
    return min(value, BORDER if is_crossed else POSITIONS)


ORIGINAL = "original_max_position_embeddings"


def _rope_dicts(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """Parameters of rotary embeddings, of all layers or of each kind."""
    found: list[dict[str, Any]] = []
    for name in ("rope_parameters", "rope_scaling"):
        value = vars(config).get(name)
        if isinstance(value, dict):
            found += [value, *(each for each in value.values() if isinstance(each, dict))]
    return found


# Widths.


def _cut_mlps(config: PreTrainedConfig) -> None:
    wide = re.compile(r"(?!.*(moe|expert)).*")
    for name, _ in _values(config):
        if _MLPS.fullmatch(name):
            limit = WIDE if wide.fullmatch(name) else NARROW
            _change(config, re.compile(re.escape(name)), _at_most(limit))
    _change(config, _EXPERTS, _at_most(EXPERTS_MAX))
    _change(config, _EXPERTS_USED, _at_most(EXPERTS_USED_MAX))
    _change(config, _GROUPS, _at_most(GROUPS_MAX))


def _cut_widths(config: PreTrainedConfig, *, keep_head_sizes: bool) -> None:
    heads = [
        v for name, value in _values(config) if _HEADS.fullmatch(name) for v in _ints(value) if v
    ]
    hidden = [v for name, value in _values(config) if _HIDDEN.fullmatch(name) for v in _ints(value)]
    if not heads or not hidden:
        return
    num_heads = max(heads)
    explicit = vars(config).get("head_dim")
    head_dim = explicit if isinstance(explicit, int) else max(hidden) // num_heads
    factor = 1 if keep_head_sizes else _halvings(head_dim)
    if factor > 1:
        _change(config, _HEAD_DIMS, lambda value: _divided(value, factor))
        _cut_rope(config, factor)
    new_heads = _fewer_heads(num_heads, num_heads)
    width, new_width = num_heads * head_dim, new_heads * head_dim // factor
    _change(config, _HEADS, lambda value: _fewer_heads(value, num_heads))
    _change(config, _HIDDEN, lambda value: _scaled(value, width, new_width))
    _change(config, _RANKS, _at_most(NARROW))


def _fewer_heads(value: int, num_heads: int) -> int:
    """One stays one, all stay all, and what is between stays between.

    >>> [_fewer_heads(value, 32) for value in (32, 8, 1)], _fewer_heads(3, 3)
    ([4, 2, 1], 3)
    """
    if value == num_heads:
        return min(value, HEADS_MAX)
    return 1 if value == 1 else 2


def _halvings(head_dim: int) -> int:
    """By how much to divide a head's size: what is odd about it stays.

    >>> _halvings(128), _halvings(80), _halvings(16), _halvings(72)
    (4, 4, 1, 4)
    """
    factor = 1
    while head_dim // factor > HEAD_DIM_MAX and head_dim // factor % 4 == 0:
        factor *= 2
    return factor


def _divided(value: int, factor: int) -> int:
    return value // factor if value % (2 * factor) == 0 else value


def _scaled(value: int, width: int, new_width: int) -> int:
    """A size in proportion to the width of all heads.

    >>> _scaled(4096, 4096, 128), _scaled(2304, 2048, 128)
    (128, 144)
    """
    return new_width if value == width else max(value * new_width // width // 16, 1) * 16


def _cut_rope(config: PreTrainedConfig, factor: int) -> None:
    """As many factors and sections as there are frequencies left."""
    for each in _rope_dicts(config):
        for name in _FACTORS:
            if isinstance(value := each.get(name), list | tuple):
                each[name] = list(value[::factor])
        if isinstance(sections := each.get("mrope_section"), list | tuple):
            each["mrope_section"] = [section // factor for section in sections]
