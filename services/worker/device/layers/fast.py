"""Making a loaded model fast: what is replaced, in which order, and how it is checked."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from kernels import pointwise
from services.worker.device.base.step import LayerProbe, running
from services.worker.device.layers.gated import fast_mlp
from services.worker.device.layers.invariant import fix_rows, products_seen
from services.worker.device.layers.merged import SIBLINGS, Merged, Sibling, joined
from services.worker.device.layers.norms import fast_norm
from services.worker.device.layers.packed import PackedLinear, can_pack, is_plain
from services.worker.device.layers.rotary import RotaryProbe, fast_rotary, rotary_users, use_rotary
from shared.runtime.memory import measure_memory

Mode = Literal["fast", "plain", "invariant"]
ProductOf = Callable[..., nn.Module]  # of linear layers that share an input

PROBE_TOKENS = 5

# How far logits may move, as a share of their norm. Each part was tried by itself; this is for what
# no part shows.
AGREES = {torch.float32: 1e-3}
AGREES_ROUNDED = 0.2

# Of free memory that copies of weights may take which stay in use in their plain form as well.
COPIES_SHARE = 0.25


@dataclass(slots=True)
class FastLayers:
    """What was replaced in a model.

    Attributes:
        packed: linear layers whose weights were packed.
        merged: those that share a product with their siblings.
        packed_bytes: of all packed weights.
        copied_bytes: of those of them that the model holds in their plain form as well.
    """

    packed: int = 0
    merged: int = 0
    norms: int = 0
    mlps: int = 0
    rotaries: int = 0
    packed_bytes: int = 0
    copied_bytes: int = 0

    def as_fields(self) -> dict[str, int]:
        """For a log line."""
        return asdict(self)


@dataclass(slots=True)
class _Calls:
    """Which tensors each linear layer was called with, while a model ran."""

    inputs: dict[nn.Module, list[Any]] = field(default_factory=dict)

    def note(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        is_known = len(args) == 1 and not named
        self.inputs.setdefault(module, []).append(args[0] if is_known else None)


def speed_up(model: Any, fixed_rows: bool = False) -> FastLayers | None:
    """Replace layers of a decoder, in place, and see that it still says the same.

    Args:
        fixed_rows: see `invariant`.

    Returns:
        None: it does not, and is to be thrown away.
    """
    before = probe(model)
    made = make_fast(model, fixed_rows=fixed_rows)
    try:
        after = probe(model)
    except Exception:  # a stranger's model, of which something is gone that it needs
        return None
    if not before.isfinite().all():
        return made  # broken as it came
    away = (after.float() - before.float()).norm() / before.float().norm()
    return made if away <= AGREES.get(before.dtype, AGREES_ROUNDED) else None


def variant_products(model: Any) -> set[str]:
    """Names of the products of a model whose sums depend on the number of rows, see `invariant`."""
    with products_seen() as seen:
        probe(model)
    return seen


def make_fast(
    model: Any,
    pack: bool | None = None,
    copies_bytes_max: int | None = None,
    fixed_rows: bool = False,
) -> FastLayers:
    """Replace layers of a decoder, in place: on a CPU or on one GPU.

    Args:
        model: loaded with our attention; its logits change by rounding alone.
        pack: whether to pack linear layers, which is a CPU's; None: where it pays.
        copies_bytes_max: limit for packed copies of weights that are needed in their plain form
            too, such as those of an embedding; None: a share of free memory.
        fixed_rows: products are computed in fixed rows, see `invariant`.
    """
    dtypes = {parameter.dtype for parameter in model.parameters()}
    devices = {parameter.device for parameter in model.parameters()}
    made = FastLayers()
    if len(dtypes) != 1 or len(devices) != 1:
        return made
    dtype, device = dtypes.pop(), devices.pop()
    calls = _watch(model)
    first = next(model.parameters())
    if pointwise.supports(first):
        pointwise.warm_up(first)
        _replace_rotaries(model, made)
        _replace_norms_and_mlps(model, made)
    if device.type == "cuda":
        _merge_siblings(model, calls, joined, made)
    elif pack if pack is not None else can_pack(dtype):
        limit = copies_bytes_max
        if limit is None:
            limit = int(COPIES_SHARE * measure_memory().available_bytes)
        packed = partial(PackedLinear, fixed_rows=fixed_rows)
        _merge_siblings(model, calls, packed, made)
        _pack(model, calls, packed, limit, made)
    if fixed_rows:
        fix_rows(model)
    return made


def probe(model: Any) -> torch.Tensor:
    """Logits of a few tokens, without attention: each token sees only its own query."""
    embedding = model.get_input_embeddings().weight
    positions = torch.arange(PROBE_TOKENS, device=embedding.device)[None]
    tokens = positions % embedding.shape[0]
    with torch.inference_mode(), running(LayerProbe()):
        logits: torch.Tensor = model(tokens, position_ids=positions, use_cache=False).logits
    return logits


def _watch(model: nn.Module) -> _Calls:
    calls = _Calls()
    hooks = [
        module.register_forward_pre_hook(calls.note, with_kwargs=True)
        for module in model.modules()
        if is_plain(module)
    ]
    probe(model)
    for hook in hooks:
        hook.remove()
    return calls


def _replace_rotaries(model: nn.Module, made: FastLayers) -> None:
    users = rotary_users(model)
    probes = {original: RotaryProbe(original) for original in users}
    for original, modules in users.items():
        for module in modules:
            use_rotary(module, probes[original])
    if users:
        probe(model)
    for original, modules in users.items():
        agrees = probes[original].agrees()
        rotate = fast_rotary(original)
        for module in modules:
            if agrees:
                use_rotary(module, rotate)
                made.rotaries += 1
            else:
                del module.forward


def _replace_norms_and_mlps(model: nn.Module, made: FastLayers) -> None:
    done: dict[nn.Module, nn.Module] = {}  # a module may stand at several places
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child not in done:
                if (norm := fast_norm(child)) is not None:
                    done[child] = norm
                    made.norms += 1
                elif (mlp := fast_mlp(child)) is not None:
                    done[child] = mlp
                    made.mlps += 1
            if child in done:
                setattr(parent, name, done[child])


def _merge_siblings(
    model: nn.Module, calls: _Calls, product_of: ProductOf, made: FastLayers
) -> None:
    uses = _uses(model)
    for parent in _parents(model):
        linears = _linears(parent, uses, calls)
        for names in SIBLINGS:
            parts = [linears[name] for name in names if name in linears]
            if len(parts) < len(names) or not _share_input(parts, calls):
                continue
            if all(uses[id(part.weight)] == 1 for part in parts):
                _merge(parent, names, product_of(*parts), parts, made)
                for part in parts:
                    del calls.inputs[part]


def _pack(
    model: nn.Module,
    calls: _Calls,
    pack: Callable[[nn.Linear], PackedLinear],
    copies_bytes_max: int,
    made: FastLayers,
) -> None:
    uses = _uses(model)
    for parent in _parents(model):
        for name, linear in _linears(parent, uses, calls).items():
            size = linear.weight.numel() * linear.weight.element_size()
            is_copy = uses[id(linear.weight)] > 1
            if is_copy and made.copied_bytes + size > copies_bytes_max:
                continue
            packed = pack(linear)
            setattr(parent, name, packed)
            del calls.inputs[linear]
            made.packed += 1
            made.packed_bytes += packed.packed_bytes
            made.copied_bytes += size if is_copy else 0


def _parents(model: nn.Module) -> list[nn.Module]:
    """Modules that have others. What holds weights is referenced nowhere else, so that it is
    freed as soon as something else stands in its place: there may be no room for both.
    """
    return [module for module in model.modules() if next(module.children(), None) is not None]


def _linears(parent: nn.Module, uses: Counter[int], calls: _Calls) -> dict[str, nn.Linear]:
    """Plain ones that stand nowhere else and are called, by name."""
    return {
        name: child
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear) and is_plain(child)
        if uses[id(child)] == 1 and child in calls.inputs
    }


def _uses(model: nn.Module) -> Counter[int]:
    """At how many places of the model each module, and each weight, stands."""
    uses: Counter[int] = Counter()
    for parent in model.modules():
        uses.update(id(child) for child in parent._modules.values() if child is not None)
        uses.update(id(each) for each in parent._parameters.values() if each is not None)
    return uses


def _share_input(parts: list[nn.Linear], calls: _Calls) -> bool:
    """Whether siblings were each called once, with the very same tensor."""
    inputs = [calls.inputs[part] for part in parts]
    first = inputs[0][0]
    return first is not None and all(len(each) == 1 and each[0] is first for each in inputs)


def _merge(
    parent: nn.Module,
    names: tuple[str, ...],
    product: nn.Module,
    parts: list[nn.Linear],
    made: FastLayers,
) -> None:
    merged = Merged(product, [part.out_features for part in parts])
    for index, (name, part) in enumerate(zip(names, parts, strict=True)):
        setattr(parent, name, Sibling(merged, index, name, part))
    made.merged += len(parts)
    if isinstance(product, PackedLinear):
        made.packed += len(parts)
        made.packed_bytes += product.packed_bytes
