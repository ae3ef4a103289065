"""What `/v1/house` reports, as panels for a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

MIB = 1024**2
BAR_CHARS = 20


def figures(view: Mapping[str, Any]) -> RenderableType:
    """The numbers that say most."""
    turns, rates, times = view["turns"], view["rates"], view["latency_ms"]
    cached = view["cached_share"]
    figures = (
        ("running", f"{turns['running']:,}"),
        ("waiting", f"{turns['waiting']:,}"),
        ("expected", f"{turns['expected']:,}"),
        ("sessions", f"{view['sessions']:,}"),
        ("replies/s", f"{rates['requests']:,.1f}"),
        ("tokens/s", f"{rates['generated_tokens']:,.0f}"),
        ("first token", _ms(times["ttft"]["p50"])),
        ("p99", _ms(times["ttft"]["p99"])),
        ("between tokens", _ms(times["inter_token"]["p50"])),
        ("not computed", "–" if cached is None else f"{cached:.0%}"),
        ("workers advised", f"+{view['scaling']['add']:g} -{view['scaling']['remove']:g}"),
    )
    return Columns(
        [Text.assemble((value, "bold"), f" {name}") for name, value in figures], padding=(0, 3)
    )


def workers(view: Mapping[str, Any]) -> RenderableType:
    """Each worker, with what its pool holds."""
    table = _table("worker", "state", "models", "run", "wait", "expect", "KV pages")
    for worker in view["workers"]:
        used = worker["num_pages"] - worker["num_pages_free"]
        table.add_row(
            escape(worker["worker_id"]),
            _state(worker["state"], worker["state"] == "ready"),
            escape(", ".join(worker["models"])),
            f"{worker['num_running']:,}",
            f"{worker['num_waiting']:,}",
            f"{worker['num_reservations']:,}",
            f"{bar(used, worker['num_pages'])} {used:,} of {worker['num_pages']:,}",
        )
    return table


def hosts(view: Mapping[str, Any]) -> RenderableType:
    """Each host, with what its tiers hold."""
    table = _table("host", "kvstore", "memory", "disk", "objects", "pinned")
    for host in view["hosts"]:
        arena, disk = host["arena"], host["disk"]
        table.add_row(
            escape(host["host_id"]),
            _state("answers" if host["has_kvstore"] else "away", host["has_kvstore"]),
            f"{bar(arena['bytes_used'], arena['bytes'])} {arena['bytes_used'] / MIB:,.0f} of "
            f"{arena['bytes'] / MIB:,.0f} MiB",
            f"{disk['bytes'] / MIB:,.0f} MiB",
            f"{host['objects']['bytes'] / MIB:,.0f} MiB",
            f"{arena['blocks_pinned']:,}",
        )
    return table


def _advisories(counted: Mapping[str, Any]) -> RenderableType:
    rates, throttled = counted["rates"], counted["throttled"]
    rows = [("live", f"{counted['live']:,}"), *_rates(counted["outcomes"])]
    rows += [(f"{one['tenant']}: used", f"{one['hits']:.0%}") for one in rates]
    rows += [(f"{one['tenant']}: throttled", f"{one['num_refused']:,}") for one in throttled]
    return _list("advisories", rows)


def lately(view: Mapping[str, Any]) -> RenderableType:
    """What was counted: advisories, where history was, placements, batches, adapters."""
    adapters = view["adapters"]
    return Columns(
        [
            _advisories(view["advisories"]),
            _list(
                "history was found",
                [
                    *_rates(view["staged_pages"], "pages: "),
                    *(
                        (f"other hosts: {way}", f"{num / MIB:,.1f} MiB/s")
                        for way, num in view["peer_bytes"].items()
                    ),
                ],
            ),
            _list("turns were placed", list(_rates(view["placements"]))),
            _list(
                "batches",
                [
                    (one["model"], f"{one['jobs_per_s']:,.1f}/s by {one['mean_size']:.1f}")
                    for one in view["batches"]
                ],
            ),
            _list("windows", [(one["model"], _window(one)) for one in view["windows"]]),
            _list(
                "adapters",
                [
                    ("known", f"{adapters['known']:,}"),
                    ("running", ", ".join(adapters["running"]) or "none"),
                    ("loading", ", ".join(adapters["waiting"]) or "none"),
                ],
            ),
            _list("processes", [(one["name"], one["state"]) for one in view["services"]]),
        ],
        padding=(0, 4),
    )


def _window(window: Mapping[str, Any]) -> str:
    """What waits of a one-shot model, and when it may start.

    >>> _window({"num_waiting": 3, "opens_in_ms": 4.0, "closes_in_ms": 9.5, "is_offered": False})
    '3 jobs, in 4 to 9.5 ms'
    """
    opens_in_ms = max(window["opens_in_ms"], 0)
    when = "wait for a worker" if window["is_offered"] else f"in {opens_in_ms:g}"
    return f"{window['num_waiting']:,} jobs, {when} to {window['closes_in_ms']:g} ms"


def bar(used: float, whole: float) -> str:
    """How much of a whole is used.

    >>> bar(1, 2)
    '██████████░░░░░░░░░░'
    """
    num = round(BAR_CHARS * min(used / whole, 1.0)) if whole else 0
    return "█" * num + "░" * (BAR_CHARS - num)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column)
    return table


def _list(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="dim", box=None, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows or [("nothing lately", "")]:
        table.add_row(escape(name), escape(value))
    return table


def _rates(rates: Mapping[str, float], prefix: str = "") -> Iterable[tuple[str, str]]:
    largest_first = sorted(rates.items(), key=lambda pair: -pair[1])
    return ((f"{prefix}{name}", f"{value:,.1f}/s") for name, value in largest_first)


def _state(word: str, is_good: bool) -> str:
    return f"[{'green' if is_good else 'red'}]{escape(word)}[/]"


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 1000 else f"{value / 1000:,.1f} s"
