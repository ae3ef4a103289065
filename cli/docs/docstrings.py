"""Docstrings of message types, taken apart."""

import inspect
import re

_FIELD = re.compile(r"(\w+(?:, \w+)*): (.*)")


def parts_of(docstring: str) -> tuple[str, dict[str, str]]:
    """What is said of a type, and of each of its fields under ``Attributes:``.

    >>> parts_of("A thing.\\n\\nAttributes:\\n    a, b: sizes,\\n        in bytes.\\n")
    ('A thing.', {'a': 'sizes, in bytes.', 'b': 'sizes, in bytes.'})
    """
    text, _, attributes = inspect.cleandoc(docstring).partition("Attributes:")
    fields: dict[str, list[str]] = {}
    last: list[str] = []
    for line in inspect.cleandoc("\n" + attributes).splitlines():
        found = _FIELD.fullmatch(line)
        if found and not line.startswith(" "):
            last = [found[2]]
            fields |= dict.fromkeys(found[1].split(", "), last)
        elif line.strip():
            last.append(line.strip())
    fields_text = {name: " ".join(lines).replace("``", "`") for name, lines in fields.items()}
    return text.strip().replace("``", "`"), fields_text
