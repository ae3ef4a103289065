"""The small files beside a model's weights, in a folder or on the hub."""

import json
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from shared.errors import ConfigError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
IMAGE_FILES = ("preprocessor_config.json",)


def read_json(source: str, name: str) -> Any | None:
    """A JSON file of a model; None if it has none of this name.

    Args:
        source: folder or hub id.

    Raises:
        ConfigError: it is not readable as JSON.
    """
    found = find_file(source, name)
    if found is None:
        return None
    try:
        return json.loads(found.read_text())
    except ValueError as error:
        raise ConfigError(f"{source}: {name} is not readable: {error}") from None


def find_file(source: str, name: str) -> Path | None:
    """Where a file of a model is on this host; None if the model has none of this name.

    Args:
        source: folder or hub id.
    """
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(
            source,
            name,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:
        return None
    return None if found is None else Path(found)


def digest_files(digest: blake2b, source: str, names: Iterable[str]) -> None:
    """Continue a hash over those of these files that the model has."""
    for name in names:
        if (path := find_file(source, name)) is not None:
            data = path.read_bytes()
            digest.update(f"{name}:{len(data)}:".encode())
            digest.update(data)
