"""Files that a set of figures leaves: pictures, numbers as JSON, and a page that shows both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from loadtest.figures.base import Figure, Results


class Report:
    """What was measured, now and in earlier runs, in one folder.

    Args:
        name: of the set, as ``deferred``.
        figures: all of the set, in order.
        pictures: folder of the pictures and of the JSON file.
        page: the Markdown file; ``../`` from it must not be needed to reach `pictures`.
    """

    def __init__(
        self, name: str, title: str, figures: Sequence[Figure], pictures: Path, page: Path
    ) -> None:
        self._name = name
        self._title = title
        self._figures = figures
        self._pictures = pictures
        self._page = page
        self._json = pictures / f"{name}.json"
        self._known: dict[str, dict[str, Any]] = {}
        if self._json.is_file():
            self._known = orjson.loads(self._json.read_bytes())

    def add(self, figure: Figure, results: Results, level: str, seconds: float) -> None:
        """Draw a figure and keep its numbers."""
        self._pictures.mkdir(parents=True, exist_ok=True)
        figure.draw(results).savefig(self._picture(figure))
        rows = [row._asdict() for row in figure.rows(results)]
        self._known[figure.key] = {
            "level": level, "seconds": round(seconds, 1), "rows": rows, "results": results
        }  # fmt: skip

    def write(self) -> None:
        """Write the JSON file and the page, with the figures of earlier runs."""
        order = [figure.key for figure in self._figures if figure.key in self._known]
        known = {key: self._known[key] for key in order}
        self._json.write_bytes(orjson.dumps(known) + b"\n")
        self._page.write_text("\n".join(self._lines(order)) + "\n")

    def _picture(self, figure: Figure) -> Path:
        return self._pictures / f"{self._name}-{figure.key}.png"

    def _lines(self, order: list[str]) -> list[str]:
        lines = [
            f"# {self._title}",
            "",
            f"Written by `./symphony bench figures {self._name}`; do not edit. "
            "[simulator.md](simulator.md) tells of the simulator behind it. *deferred* is the "
            "paper's algorithm as printed, *steady* is ours and the default. The paper's column is "
            "empty where its text gives no number. Quick figures come from short runs: their last "
            "digits are noise.",
        ]
        by_key = {figure.key: figure for figure in self._figures}
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
                f"| {known['level']} run, {known['seconds']:.0f} s | paper | here |",
                "|---|---|---|",
            ]
            lines += [
                f"| {row['what']} | {row['paper']} | {row['ours']} |" for row in known["rows"]
            ]
        return lines
