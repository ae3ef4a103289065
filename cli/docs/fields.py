"""``python -m cli.docs.fields``: write the table in ``docs/fields.md``, from
``services/frontend/api/bodies/fields.py``.
"""

import json
from pathlib import Path
from typing import get_args

from services.frontend.api.bodies.base import Endpoint
from services.frontend.api.bodies.fields import FIELDS, Field
from services.frontend.api.bodies.meanings import of_body

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fields.md"
HEAD = "| field | endpoints | what becomes of it | goes to |\n|---|---|---|---|\n"


def table() -> str:
    """The table as the page shows it."""
    order = list(get_args(Endpoint))
    rows = []
    for field in sorted(FIELDS, key=lambda f: (f.name, order.index(f.endpoints[0]))):
        for meaning, endpoints in _meanings(field).items():
            names = ", ".join(sorted(endpoints, key=order.index))
            fate = fate_of(field, meaning)
            rows.append(f"| `{field.name}` | {names} | {fate} | {field.stage or ''} |\n")
    return HEAD + "".join(rows)


def _meanings(field: Field) -> dict[str, list[Endpoint]]:
    """What it means at which of its endpoints; that is of no use where it does not work."""
    found: dict[str, list[Endpoint]] = {}
    for endpoint in field.endpoints:
        meaning = of_body(endpoint, field.name) if field.fate == "works" else ""
        found.setdefault(meaning, []).append(endpoint)
    return found


def fate_of(field: Field, meaning: str) -> str:
    """What becomes of a field, what it means, for which values, and what to use instead."""
    values = ", ".join(f"`{json.dumps(value)}`" for value in field.values)
    text: str = field.fate
    if meaning:
        text += f": {meaning}"
    if values:
        text += f"; {values}" if field.fate == "works" else f", but for {values}"
    return text + (f"; {field.hint}" if field.hint else "")


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index("| field |")] + table())
