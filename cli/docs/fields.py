"""``python -m cli.docs.fields``: write the table in ``docs/fields.md``, from
``services/frontend/api/bodies/fields.py``.
"""

import json
from pathlib import Path
from typing import get_args

from services.frontend.api.bodies.base import Endpoint
from services.frontend.api.bodies.fields import FIELDS, Field

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fields.md"
HEAD = "| field | endpoints | what becomes of it | goes to |\n|---|---|---|---|\n"


def table() -> str:
    """The table as the page shows it."""
    order = list(get_args(Endpoint))
    rows = []
    for field in sorted(FIELDS, key=lambda f: (f.name, order.index(f.endpoints[0]))):
        names = ", ".join(sorted(field.endpoints, key=order.index))
        rows.append(f"| `{field.name}` | {names} | {fate_of(field)} | {field.stage or ''} |\n")
    return HEAD + "".join(rows)


def fate_of(field: Field) -> str:
    """What becomes of a field, for which values, and what to use instead."""
    values = ", ".join(f"`{json.dumps(value)}`" for value in field.values)
    text: str = field.fate
    if values:
        text += f": {values}" if field.fate == "works" else f", but for {values}"
    return text + (f"; {field.hint}" if field.hint else "")


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index("| field |")] + table())
