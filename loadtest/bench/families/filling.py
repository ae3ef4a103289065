"""Lines of a page."""

import textwrap
from collections.abc import Iterable

WIDTH = 118


def filled(words: Iterable[str], separator: str = " ") -> str:
    """Words in lines that are no longer than a page's."""
    text = separator.join(words)
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
