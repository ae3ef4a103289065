"""Files that a set of figures leaves: pictures, numbers as JSON, and a page that shows both."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from loadtest.papers.base import Figure, FigureSet, Results

ROWS_ALONE_MAX = 6  # of a figure that the paper gives no number for


class Report:
    """What was measured, now and in earlier runs, in one folder.

    Args:
        pictures: folder of the pictures and of the JSON file.
        page: the Markdown file; ``../`` from it must not be needed to reach `pictures`.
    """

    def __init__(self, figures: FigureSet, pictures: Path, page: Path) -> None:
        self._set = figures
        self._pictures = pictures
        self._page = page
        self._json = pictures / f"{figures.name}.json"
        self._known: dict[str, dict[str, Any]] = {}
        if self._json.is_file():
            self._known = orjson.loads(self._json.read_bytes())

    def add(self, figure: Figure, results: Results, level: str, seconds: float) -> None:
        """Draw a figure and keep its numbers."""
        self._pictures.mkdir(parents=True, exist_ok=True)
        figure.draw(results).savefig(self._picture(figure))
        rows = [row.as_dict() for row in figure.rows(results)]
        self._known[figure.key] = {
            "level": level, "seconds": round(seconds, 1), "rows": rows, "results": results
        }  # fmt: skip

    def redraw(self) -> list[str]:
        """Pictures, tables and page again from the numbers that are kept; the figures' keys."""
        for figure in self._figures():
            known = self._known[figure.key]
            self.add(figure, known["results"], known["level"], known["seconds"])
        self.write()
        return [figure.key for figure in self._figures()]

    def write(self) -> None:
        """Write the JSON file and the page, with the figures of earlier runs."""
        known = {figure.key: self._known[figure.key] for figure in self._figures()}
        self._json.write_bytes(orjson.dumps(known) + b"\n")
        self._page.write_text("\n".join(self._lines()) + "\n")

    def _figures(self) -> list[Figure]:
        """Those with numbers, in the set's order."""
        return [figure for figure in self._set.figures if figure.key in self._known]

    def _picture(self, figure: Figure) -> Path:
        return self._pictures / f"{self._set.name}-{figure.key}.png"

    def _lines(self) -> list[str]:
        name = self._set.name
        lines = [
            f"# {self._set.title}",
            "",
            f"Written by `./symphony bench figures {name}`; do not edit. {self._set.intro} "
            "Tables show what the paper gives a number for; every other number is in "
            f"`figures/{name}.json`.",
        ]
        for figure in self._figures():
            known = self._known[figure.key]
            place = self._picture(figure).relative_to(self._page.parent)
            lines += [
                "",
                f"## {figure.title}",
                "",
                figure.about,
                "",
                f"![{figure.title}]({place.as_posix()})",
            ]
            rows = [row for row in known["rows"] if row["paper"]] or known["rows"][:ROWS_ALONE_MAX]
            if rows:
                lines += ["", *_table(f"{known['level']} run, {known['seconds']:.0f} s", rows)]
        return lines


def _table(run: str, rows: list[dict[str, str]]) -> list[str]:
    """Lines of a figure's table; how its numbers were obtained stands above it, or, where that
    differs between rows, in a column.
    """
    columns, above = {"what": run, "paper": "paper", "ours": "here"}, []
    hows = {row.get("how", "") for row in rows}
    if len(hows) > 1:
        columns["how"] = "how"
    elif how := hows.pop():
        above = [how[0].upper() + how[1:] + ".", ""]
    for name, title in (("shares", "history, %"), ("mark", "mark")):
        if any(row.get(name) for row in rows):
            columns[name] = title
    if not any(row["paper"] for row in rows):
        del columns["paper"]
    return [
        *above,
        _line(columns.values()),
        "|" + "---|" * len(columns),
        *(_line(row.get(name, "") for name in columns) for row in rows),
    ]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
