"""What a server wrote, made harmless for a terminal.

A terminal obeys what it is sent: an escape sequence from a model could move the cursor, name the
window or fill the clipboard. Every character is mapped by itself, so that text cut into pieces
anywhere comes out as it would whole.
"""

ESCAPE_PICTURES = 0x2400  # U+2400 + c draws the control character c
BIDI_CONTROLS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))

_VISIBLE: dict[int, str | None] = {
    **{code: chr(ESCAPE_PICTURES + code) for code in range(0x20)},
    **dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}"),  # C1: no pictures of them
    **dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}"),  # print would raise
    **dict.fromkeys(BIDI_CONTROLS),  # they show text in another order than it has
    0x7F: "\N{SYMBOL FOR DELETE}",
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): None,  # half of a line's end; alone it would write over the line
}


def visible(text: str) -> str:
    r"""`text` without a character that a terminal would obey, but newline and tab.

    >>> visible("a\x1b[2Jb\r\n")
    'a␛[2Jb\n'
    """
    return text.translate(_VISIBLE)


def one_line(text: str, num_chars_max: int = 500) -> str:
    r"""`text` as a visible line of at most `num_chars_max` characters.

    >>> one_line("no such\n  model")
    'no such model'
    """
    line = " ".join(visible(text).split())
    return line if len(line) <= num_chars_max else line[: num_chars_max - 1] + "…"
