"""The small files beside a model's weights, in a folder or on the hub."""

import json
from pathlib import Path
from typing import Any

from shared.errors import ConfigError


def read_json(source: str, name: str) -> Any | None:
    """A JSON file of a model; None if it has none of this name.

    Args:
        source: folder or hub id.

    Raises:
        ConfigError: it is not readable as JSON.
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
    if found is None:
        return None
    try:
        return json.loads(Path(found).read_text())
    except ValueError as error:
        raise ConfigError(f"{source}: {name} is not readable: {error}") from None
