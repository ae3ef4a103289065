"""Whether an adapter can be served on a model, and what it then is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shared.adapters.config import CONFIG_FILE, AdapterInvalid, AdapterTooLarge, shown
from shared.adapters.source import (
    AdapterLimits,
    AdapterSource,
    content_hash,
    new_digest,
    open_source,
)
from shared.adapters.tensors import WEIGHTS_FILE
from shared.adapters.values import Truncated, first_unfit, number, read_chunks, values_hash
from shared.adapters.vocabulary import TOKENIZER_BYTES_MAX, TOKENIZER_FILE, vocabulary_hash
from shared.wire.messages.adapters import LoraCard

TOKENIZER_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAdapter:
    """An adapter that can be served.

    Attributes:
        adapter_hash: of tensors and scales; other weights under the same name have another.
        ranks: of each target that it has, the largest of all layers, by `LoraTarget.name`.
        lora_rank: the largest of its ranks.
        num_bytes: of `files`.
        warnings: what its owner should know.
        files: names of all that is to be copied; others mean nothing.
    """

    adapter_hash: str
    ranks: dict[str, int]
    lora_rank: int
    num_bytes: int
    num_tensors: int
    warnings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFacts:
    """What is known of the model beyond its card.

    Attributes:
        names: by which it is called; empty: not known.
        vocabulary: `vocabulary_hash` of its tokenizer; empty: not known.
        weights: name of an outer layer -> `values_hash` of its weight; None: copies of those were
            compared before.
    """

    names: tuple[str, ...] = ()
    vocabulary: str = ""
    weights: Mapping[str, str] | None = field(default_factory=dict)


def check_adapter(
    folder: Path, card: LoraCard, limits: AdapterLimits, base: BaseFacts | None = None
) -> CheckedAdapter:
    """Read all of a PEFT folder. It blocks: some 0.2 s for 100 MB.

    The folder must not change meanwhile or afterwards: check the copy.

    Raises:
        AdapterInvalid: it cannot be served; says which field, tensor or file, what was found there
            and what was expected.
        AdapterTooLarge: one of those, with an HTTP status of its own.
    """
    facts = base or BaseFacts()
    with open_source(folder, card, limits) as source:
        try:
            digests = _read_all(source, card)
            _check_base_copies(source, facts)
        except Truncated as error:
            raise AdapterInvalid(str(error), "the file ends before it does") from None
        tokenizer = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
        num_bytes = source.config_bytes + source.weights_bytes
        num_bytes += sum((folder / name).stat().st_size for name in tokenizer)
        if num_bytes > limits.num_bytes:
            raise AdapterTooLarge(
                WEIGHTS_FILE, f"{num_bytes} bytes of files, at most {limits.num_bytes} are taken"
            )
        if TOKENIZER_FILE in tokenizer and facts.vocabulary:
            _check_vocabulary(folder / TOKENIZER_FILE, facts.vocabulary)
        ranks: dict[str, int] = {}
        for each in source.tensors.modules:
            ranks[each.target.name] = max(each.rank, ranks.get(each.target.name, 0))
        return CheckedAdapter(
            adapter_hash=content_hash(source.tensors.modules, digests),
            ranks=ranks,
            lora_rank=max(ranks.values()),
            num_bytes=num_bytes,
            num_tensors=source.num_tensors,
            warnings=_warnings(source, facts, tokenizer),
            files=[CONFIG_FILE, WEIGHTS_FILE, *tokenizer],
        )


def _read_all(source: AdapterSource, card: LoraCard) -> dict[str, bytes]:
    """The digest of each tensor of a module, whose values are looked at."""
    dtype = card.dtype or ("float32" if card.element_bytes == 4 else "")
    digests: dict[str, bytes] = {}
    for module in source.tensors.modules:
        for each in (module.a, module.b):
            digest = new_digest()
            for bits in read_chunks(source.weights.fileno(), each):
                at = first_unfit(bits, each.dtype, dtype)
                if at is not None:
                    value = number(bits, each.dtype, at)
                    raise AdapterInvalid(
                        each.name, f"{value:g} is not finite in {dtype or each.dtype}"
                    )
                digest.update(bits.data)
            digests[each.name] = digest.digest()
    return digests


def _check_base_copies(source: AdapterSource, facts: BaseFacts) -> None:
    """PEFT saves the base's own weight beside an adapter of its head."""
    if facts.weights is None:
        return
    for name, entry in source.tensors.base.items():
        expected = facts.weights.get(name)
        if expected is None:
            raise AdapterInvalid(
                entry.name, "a copy of a weight of the base, which is not known here: leave it out"
            )
        found = values_hash(read_chunks(source.weights.fileno(), entry), entry.dtype)
        if found != expected:
            raise AdapterInvalid(
                entry.name, f"differs from the base's: its values' hash is {found}, not {expected}"
            )


def _check_vocabulary(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        raw = file.read(TOKENIZER_BYTES_MAX + 1)
    if len(raw) > TOKENIZER_BYTES_MAX:
        raise AdapterInvalid(TOKENIZER_FILE, f"larger than {TOKENIZER_BYTES_MAX} bytes")
    found = vocabulary_hash(raw)
    if found != expected:
        raise AdapterInvalid(
            TOKENIZER_FILE,
            f"another vocabulary than the base's: its hash is {found}, not {expected}",
        )


def _warnings(source: AdapterSource, facts: BaseFacts, tokenizer: list[str]) -> list[str]:
    found = list(source.config.unknown)
    name = source.config.base_name
    if facts.names and name and name not in facts.names:
        found.append(
            f"base_model_name_or_path: {shown(name)} is not {shown(facts.names[0])}: its shapes fit"
        )
    if tokenizer:
        found.append(f"{', '.join(tokenizer)}: the base's tokenizer and template are used")
    return found
