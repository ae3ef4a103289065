"""The adapters that are measured: PEFT folders from a seed, taken in as a kvstore does."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.adapters import STRENGTH, Module, Recipe, modules_of, write_adapter
from shared.adapters.check import check_adapter
from shared.adapters.source import AdapterLimits
from shared.errors import InvalidRequest
from shared.wire.messages import AdapterRef, LoraCard

# Ends of modules' names; none: all of them.
TARGETS: dict[str, tuple[str, ...]] = {
    "all": (),
    "qkvo": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "qv": ("q_proj", "v_proj"),
}
FILE_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class MadeAdapter:
    """Attributes:
    folder: with its files.
    weight_bytes: of A and B in the model's dtype.
    """

    ref: AdapterRef
    folder: Path
    weight_bytes: int


def make_adapters(
    folder: Path, card: LoraCard, targets: str, ranks: Sequence[int], count: int
) -> list[MadeAdapter]:
    """So many `written_in_turn`, each in a folder that is called by its hash.

    Raises:
        InvalidRequest: the model has no such targets.
    """
    modules, numbers = layer_modules(card), range(count)
    written = list(written_in_turn(folder, modules, card.dtype, targets, ranks, numbers))
    return [_take_in(each, card) for each in written]


def layer_modules(card: LoraCard) -> list[Module]:
    """What a model has in its layers."""
    outer = {each.name for each in card.outer}
    return [each for each in modules_of(card) if each.name not in outer]


def written_in_turn(
    folder: Path,
    modules: Sequence[Module],
    dtype: str,
    targets: str,
    ranks: Sequence[int],
    numbers: Iterable[int],
) -> Iterator[Path]:
    """PEFT adapters, each written into a folder of its own when it is asked for; the same for the
    same modules in any order.

    Args:
        modules: that a model has in its layers.
        dtype: of the files, in torch's words; the model's, so that nothing is rounded.
        targets: of `TARGETS`, in every layer.
        ranks: that adapters have in turn.
        numbers: of the adapters, which are their seeds.

    Raises:
        InvalidRequest: there are no such targets.
    """
    ends = TARGETS[targets]
    chosen = [each for each in modules if not ends or each.name.endswith(ends)]
    if not chosen:
        raise InvalidRequest(f"--targets {targets}: the model has none of {', '.join(ends)}")
    chosen.sort(key=lambda module: module.name)
    for number in numbers:
        recipe = Recipe(
            seed=number,
            rank=ranks[number % len(ranks)],
            dtype=FILE_DTYPES[dtype],
            strength=STRENGTH,
        )
        yield write_adapter(folder / f"a{number}", chosen, recipe)


def _take_in(written: Path, card: LoraCard) -> MadeAdapter:
    checked = check_adapter(written, card, AdapterLimits())
    ref = AdapterRef(
        adapter_hash=checked.adapter_hash,
        name=written.name,
        lora_rank=checked.lora_rank,
        ranks=checked.ranks,
    )
    shapes = {each.name: each.num_in + each.num_out for each in card.targets}
    weights = sum(rank * shapes[name] for name, rank in checked.ranks.items())
    return MadeAdapter(
        ref,
        written.rename(written.with_name(checked.adapter_hash)),
        weights * card.num_layers * card.element_bytes,
    )
