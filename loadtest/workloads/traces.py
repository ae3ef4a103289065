"""Files of `../shared/traces`, as workloads read them."""

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from cli.base.children import ROOT

TRACES = ROOT.parent / "shared" / "traces"


def path_of(name: str) -> Path:
    """Of a file, by its name within the folder of traces."""
    return TRACES / name


def cells_of(name: str, first: str) -> Iterator[list[str]]:
    """Of a large packed table without quotes, the rows of which the first column is `first`."""
    with gzip.open(path_of(name), "rt") as file:
        for line in file:
            if line.startswith(f"{first},"):
                yield line.rstrip("\n").split(",")


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """Of a table, by the names of its columns."""
    path = path_of(name)
    with (
        gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file
    ):
        yield from csv.DictReader(file)


def records_of(name: str) -> Iterator[dict[str, Any]]:
    """Of a packed file with a JSON object a line."""
    with gzip.open(path_of(name)) as file:
        yield from map(orjson.loads, file)
