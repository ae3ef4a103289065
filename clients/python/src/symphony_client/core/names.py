"""Names as a deployment takes them: frameworks call agents by whole sentences, with line breaks."""

from hashlib import sha256

NAME_CHARS_MAX = 256
DIGEST_CHARS = 16


def plain(name: str, num_max: int = NAME_CHARS_MAX) -> str:
    """The name without control characters and needless space, and not too long: of a longer one the
    beginning, and a hash that distinguishes it.

    >>> plain("  Senior\\n writer\\n"), plain("a" * 40, 20)
    ('Senior writer', 'aaa-e33cdf9c7f7120b9')
    """
    words = " ".join("".join(one if one.isprintable() else " " for one in name).split())
    if len(words) <= num_max:
        return words
    digest = sha256(words.encode(errors="replace")).hexdigest()[:DIGEST_CHARS]
    return f"{words[: num_max - DIGEST_CHARS - 1]}-{digest}"
