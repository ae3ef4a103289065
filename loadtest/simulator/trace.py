"""A run as a file for a trace viewer (https://ui.perfetto.dev, chrome://tracing)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from loadtest.simulator.log import DONE, PREEMPTED, REASONS, Record

GPUS, MODELS = 1, 2  # "processes" of the viewer


def write_trace(path: Path, record: Record) -> None:
    """Write Chrome trace events: a row for each GPU with its batches as slices, and a row for each
    model with its drops as instants.
    """
    events = [*_names(record), *_batches(record), *_drops(record)]
    path.write_bytes(orjson.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _names(record: Record) -> Iterator[dict[str, Any]]:
    yield _name("process_name", GPUS, 0, "GPUs")
    yield _name("process_name", MODELS, 0, "dropped jobs")
    for gpu in range(record.num_gpus):
        yield _name("thread_name", GPUS, gpu, f"GPU {gpu}")
    for index, model in enumerate(record.models):
        yield _name("thread_name", MODELS, index, model.name)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _batches(record: Record) -> Iterator[dict[str, Any]]:
    columns = (
        record.number, record.gpu, record.model, record.size, record.end, record.sent_at_ns,
        record.start_ns, record.end_ns,
    )  # fmt: skip
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, gpu, model, size, end, sent_at_ns, start_ns, end_ns in rows:
        how = "" if end == DONE else " preempted" if end == PREEMPTED else " lost"
        yield {
            "ph": "X",
            "name": f"{record.models[model].name} x{size}{how}",
            "cat": "batch",
            "pid": GPUS,
            "tid": gpu,
            "ts": start_ns / 1e3,
            "dur": (end_ns - start_ns) / 1e3,
            "args": {"number": number, "size": size, "sent_at_ms": sent_at_ns / 1e6},
        }


def _drops(record: Record) -> Iterator[dict[str, Any]]:
    first = 0
    rows = zip(record.drop_at_ns.tolist(), record.drop_size.tolist(), strict=True)
    for at_ns, size in rows:
        refs = record.drop_refs[first : first + size]
        reason = REASONS[int(record.drop_reason[first])]
        first += size
        yield {
            "ph": "i",
            "s": "t",
            "name": f"{reason} x{size}",
            "cat": "drop",
            "pid": MODELS,
            "tid": int(record.arrivals.model[refs[0]]),
            "ts": at_ns / 1e3,
        }
