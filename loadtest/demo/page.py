"""`demo.html`: pictures, tables and sentences in one file that needs no other."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from loadtest.demo.screen import COLUMN_HEADS, cells_of, hints_line
from loadtest.demo.script import Part

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "td,th{padding:.2rem 1rem;text-align:right}td:first-child{text-align:left}"
    "img{max-width:100%}"
)


def page(
    text: Sequence[str],
    parts: Mapping[Part, Mapping[str, Any]],
    titles: Mapping[Part, str],
    pictures: Mapping[Part, bytes],
) -> str:
    """All of it.

    Args:
        text: sentences that stand first.
        parts: figures, with their `verdicts`, by part; titles: of these.
        pictures: PNG, by part; some may have none.
    """
    body = [
        "<h1>Symphony, with hints and without</h1>",
        *(f"<p>{escape(each)}</p>" for each in text),
    ]
    for part, figures in parts.items():
        body.append(f"<h2>{escape(titles[part])}</h2>")
        body += [f"<p>{escape(each)}</p>" for each in figures["verdicts"]]
        body += [_table(figures), f"<p>{escape(hints_line(figures['hints']))}</p>"]
        if part in pictures:
            data = b64encode(pictures[part]).decode()
            body.append(f'<img alt="{escape(titles[part])}" src="data:image/png;base64,{data}">')
    inside = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Symphony</title>'
        f"<style>{STYLE}</style></head><body>\n{inside}\n</body></html>\n"
    )


def _table(figures: Mapping[str, Any]) -> str:
    heads = "".join(f"<th>{head}</th>" for head in COLUMN_HEADS)
    rows = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{escape(each)}</td>' for each in values)}</tr>"
        for label, values in cells_of(figures)
    )
    return f"<table><tr><th></th>{heads}</tr>{rows}</table>"
