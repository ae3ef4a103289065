"""`symphony status`, for people."""

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cli.inspection.capacity import capacity_text

MIB = 1024**2


def render(status: dict[str, Any]) -> RenderableType:
    """The object of ``status --json`` as tables."""
    head = Text(f"{status['url']}  ")
    head.append(status["state"], "green" if status["state"] == "ready" else "yellow")
    for reason in status["reasons"]:
        head.append(f"\n  {reason}", "yellow")
    services = Table(box=None, pad_edge=False)
    for column in ("service", "pid", "state"):
        services.add_column(column)
    for service in status["services"]:
        colour = "green" if service["state"] in ("ready", "running") else "yellow"
        state = f"[{colour}]{service['state']}[/{colour}]"
        if service["stage"]:
            state += f": {escape(service['stage'])}"
        services.add_row(service["name"], str(service["pid"] or ""), state)
    parts: list[RenderableType] = [head, "", services]
    if len(status["hosts"]) > 1:
        parts += ["", _hosts(status["hosts"])]
    if status["workers"]:
        parts += ["", _workers(status["workers"])]
    if status["capacity"]:
        parts += ["", Text(capacity_text(status["capacity"]))]
    if status["hints"]["rates"] or status["hints"]["throttled"]:
        parts += ["", _hints(status["hints"])]
    parts += ["", _tiers(status)]
    return Group(*parts)


def _hosts(hosts: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("host", "kvstore", "arena", "disk", "workers"):
        table.add_column(column)
    for host in hosts:
        arena, disk = host["arena"], host["disk"]
        table.add_row(
            host["host_id"],
            "[green]answers[/green]" if host["has_kvstore"] else "[yellow]away[/yellow]",
            f"{arena['bytes_used'] / MIB:,.0f} of {arena['bytes'] / MIB:,.0f} MiB",
            f"{disk['bytes'] / MIB:,.0f} of {disk['bytes_max'] / MIB:,.0f} MiB",
            "\n".join(host["workers"]),
        )
    return table


def _workers(workers: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("worker", "state", "models", "turns", "expected", "pages used"):
        table.add_column(column)
    for worker in workers:
        used = worker["num_pages"] - worker["num_pages_free"]
        table.add_row(
            worker["worker_id"],
            worker["state"],
            ", ".join(worker["models"]),
            str(worker["num_turns"]),
            str(worker["num_reservations"]),
            f"{used:,} of {worker['num_pages']:,}",
        )
    return table


def _hints(hints: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("tenant", "advisories", "used", "throttled"):
        table.add_column(column)
    for rate in hints["rates"]:
        table.add_row(
            escape(rate["tenant"]), f"{rate['num_hints']:,.0f} lately", f"{rate['hits']:.0%}"
        )
    for one in hints["throttled"]:
        whose = f"from {one['place']}" if one["place"] else "all"
        text = f"{whose}: {one['num_refused']:,} refused"
        table.add_row(escape(one["tenant"]), "", "", f"[yellow]{escape(text)}[/yellow]")
    return table


def _tiers(status: dict[str, Any]) -> str:
    arena, disk = status["tiers"]["arena"], status["tiers"]["disk"]
    in_objects = status["tiers"]["objects"]["bytes"]
    objects = f" · object store {in_objects / MIB:,.0f} MiB" if in_objects else ""
    return (
        f"{status['sessions']} sessions · "
        f"arena {arena['bytes_used'] / MIB:,.0f} of {arena['bytes'] / MIB:,.0f} MiB · "
        f"disk {disk['bytes'] / MIB:,.0f} of {disk['bytes_max'] / MIB:,.0f} MiB in "
        f"{disk['blocks']:,} blocks{objects}"
    )
