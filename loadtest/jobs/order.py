"""What a driver process is told to send, and what it tells of it: two files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from loadtest.simulator.arrivals import Arrivals, Instants

ANSWERED, DROPPED, UNANSWERED = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Attributes:
    slo_ns: from a job's arrival to the end of its answer.
    fastest_ns: run time of a batch of one.
    """

    name: str
    slo_ns: int
    fastest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Attributes:
    counted_from_ns: after the first arrival's zero; processor time is taken from then on.
    pids: processes whose processor time to take, by name.
    num_shards: of the scheduler.
    """

    nats_url: str
    models: Sequence[Model]
    arrivals: Arrivals
    counted_from_ns: int
    pids: Mapping[str, int]
    num_shards: int = 1

    def write(self, path: Path) -> None:
        """To a file for `read_order`."""
        about = {
            "nats_url": self.nats_url,
            "models": self.models,
            "counted_from_ns": self.counted_from_ns,
            "pids": dict(self.pids),
            "num_shards": self.num_shards,
            "end_ns": self.arrivals.end_ns,
        }
        _save(path, about, at_ns=self.arrivals.at_ns, model=self.arrivals.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Attributes:
    began_at_ns: the arrivals' zero, monotonic; all processes of a machine share that clock.
    end: of each job: `ANSWERED`, `DROPPED` by the scheduler, or `UNANSWERED` by its deadline.
    took_ns: of each job, from its arrival to its end.
    late_ns: of each job, from its arrival to when the driver came to send it.
    cpu_s: processor seconds in the counted time, by process; the driver's own as ``driver``.
    """

    began_at_ns: int
    end: NDArray[np.uint8]
    took_ns: Instants
    late_ns: Instants
    cpu_s: Mapping[str, float]

    def write(self, path: Path) -> None:
        """To a file for `read_outcome`."""
        about = {"began_at_ns": self.began_at_ns, "cpu_s": dict(self.cpu_s)}
        _save(path, about, end=self.end, took_ns=self.took_ns, late_ns=self.late_ns)


def read_order(path: Path) -> Order:
    """What `Order.write` wrote."""
    about, arrays = _load(path)
    arrivals = Arrivals(arrays["at_ns"], arrays["model"], about.pop("end_ns"))
    models = [Model(**model) for model in about.pop("models")]
    return Order(models=models, arrivals=arrivals, **about)


def read_outcome(path: Path) -> Outcome:
    """What `Outcome.write` wrote."""
    about, arrays = _load(path)
    return Outcome(
        began_at_ns=about["began_at_ns"],
        end=arrays["end"],
        took_ns=arrays["took_ns"],
        late_ns=arrays["late_ns"],
        cpu_s=about["cpu_s"],
    )


def _save(path: Path, about: Mapping[str, Any], **arrays: NDArray[Any]) -> None:
    with path.open("wb") as file:
        about_bytes = np.frombuffer(orjson.dumps(about), np.uint8)
        np.savez(file, allow_pickle=False, about=about_bytes, **arrays)


def _load(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    return orjson.loads(arrays.pop("about").tobytes()), arrays
