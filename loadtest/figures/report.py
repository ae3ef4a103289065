"""Files that a set of figures leaves: pictures, numbers as JSON, and a page that shows both."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from loadtest.figures.base import Figure, FigureSet, Results


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
        rows = [row.told() for row in figure.rows(results)]
        self._known[figure.key] = {
            "level": level, "seconds": round(seconds, 1), "rows": rows, "results": results
        }  # fmt: skip

    def write(self) -> None:
        """Write the JSON file and the page, with the figures of earlier runs."""
        order = [figure.key for figure in self._set.figures if figure.key in self._known]
        known = {key: self._known[key] for key in order}
        self._json.write_bytes(orjson.dumps(known) + b"\n")
        self._page.write_text("\n".join(self._lines(order)) + "\n")

    def _picture(self, figure: Figure) -> Path:
        return self._pictures / f"{self._set.name}-{figure.key}.png"

    def _lines(self, order: list[str]) -> list[str]:
        lines = [
            f"# {self._set.title}",
            "",
            f"Written by `./symphony bench figures {self._set.name}`; do not edit. "
            f"{self._set.intro}",
        ]
        by_key = {figure.key: figure for figure in self._set.figures}
        for key in order:
            figure, known = by_key[key], self._known[key]
            place = self._picture(figure).relative_to(self._page.parent)
            lines += [
                "",
                f"## {figure.title}",
                "",
                figure.about,
                "",
                f"![{figure.title}]({place.as_posix()})",
                "",
                *_table(f"{known['level']} run, {known['seconds']:.0f} s", known["rows"]),
            ]
        return lines


def _table(run: str, rows: list[dict[str, str]]) -> list[str]:
    """Lines of a figure's table; a column says how rows were come to if any of them does."""
    columns = {"what": run, "paper": "paper", "ours": "here"}
    if any("how" in row for row in rows):
        columns["how"] = "how"
    return [
        _line(columns.values()),
        "|" + "---|" * len(columns),
        *(_line(row.get(name, "") for name in columns) for row in rows),
    ]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
