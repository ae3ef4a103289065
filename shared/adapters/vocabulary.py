"""The vocabulary of a ``tokenizer.json``: an adapter that was trained on another one would be
served tokens that it never saw.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

from shared.adapters.config import AdapterInvalid, parse_object, shown

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_BYTES_MAX = 64 << 20


def vocabulary_hash(raw: bytes) -> str:
    """Of all tokens with their ids, hex; how texts are cut into them does not count.

    Args:
        raw: a ``tokenizer.json``.

    Raises:
        AdapterInvalid: it is no such file.
    """
    fields = parse_object(raw, TOKENIZER_FILE)
    model, added = fields.get("model"), fields.get("added_tokens") or []
    vocab: Any = model.get("vocab") if isinstance(model, dict) else None
    try:
        if isinstance(vocab, list):  # of tokens with scores, an id is the place
            ids = {token: at for at, (token, _) in enumerate(vocab)}
        else:
            ids = dict(vocab.items())
        ids |= {each["content"]: each["id"] for each in added}
        lines = sorted(f"{ids[token]:d} {token!r}" for token in ids)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise AdapterInvalid(TOKENIZER_FILE, f"has no vocabulary: {shown(str(error))}") from None
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def vocabulary_of(source: str) -> str:
    """`vocabulary_hash` of a model's folder; empty if it has no such file that can be read."""
    try:
        with (Path(source) / TOKENIZER_FILE).open("rb") as file:
            raw = file.read(TOKENIZER_BYTES_MAX + 1)
        return vocabulary_hash(raw) if len(raw) <= TOKENIZER_BYTES_MAX else ""
    except (OSError, ValueError, AdapterInvalid):
        return ""
