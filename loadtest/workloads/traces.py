"""Files of `../shared/traces`, as workloads read them."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from loadtest.typing_people import TRACES


def path_of(name: str) -> Path:
    """Of a file, by its name within the folder of traces."""
    return TRACES / name


def rows_of(name: str, first: str = "") -> Iterator[dict[str, str]]:
    """Of a table, by the names of its columns; only those of which the first column is `first`, if
    that is not empty."""
    path = path_of(name)
    with (
        gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file
    ):
        names = next(csv.reader([file.readline()]))
        lines = (line for line in file if line.startswith(f"{first},")) if first else file
        yield from csv.DictReader(lines, names)


def records_of(name: str) -> Iterator[dict[str, Any]]:
    """Of a packed file with a JSON object a line."""
    with gzip.open(path_of(name)) as file:
        yield from map(orjson.loads, file)
