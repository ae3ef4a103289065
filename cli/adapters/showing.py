"""Adapters on a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from cli.chat.sanitise import one_line

EVERYBODY = "everybody"


def table_of(adapters: Sequence[Mapping[str, Any]]) -> Table:
    """One line an adapter."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("name", "base", "rank", "size", "whose"):
        table.add_column(title, justify="right" if title in ("rank", "size") else "left")
    for each in adapters:
        whose = each["tenant"] or EVERYBODY
        size = f"{each['num_bytes'] / 1e6:.1f} MB"
        cells = (each["id"], each["parent"], each["lora_rank"], size, whose)
        table.add_row(*(Text(one_line(str(cell))) for cell in cells))
    return table


def lines_of(adapter: Mapping[str, Any]) -> list[str]:
    """All about one."""
    ranks = ", ".join(f"{name} {rank}" for name, rank in sorted(adapter["ranks"].items()))
    lines = [
        f"name      {adapter['id']}",
        f"base      {adapter['parent']}",
        f"whose     {adapter['tenant'] or EVERYBODY}",
        f"from      {adapter['root']}",
        f"ranks     {ranks}",
        f"files     {adapter['num_bytes'] / 1e6:.2f} MB",
        f"in pages  {adapter['image_bytes'] / 1e6:.2f} MB",
        f"hash      {adapter['adapter_hash']}",
        f"changes   {adapter['revision']}",
        *(f"warning   {warning}" for warning in adapter["warnings"]),
    ]
    return [one_line(line) for line in lines]
