"""Steps in a file, one JSON object a line: an executor's inputs, and the tokens that it chose.

A recording that begins with an executor's first step can be run again on any device: plans hold all
that a step depends on, except for history that was loaded from below.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from services.worker.core.step import (
    ImageEntry,
    ImageSource,
    Ints,
    RowSampling,
    RowScoring,
    StepPlan,
    StepResult,
    TableEntries,
)
from shared.errors import InvalidRequest
from shared.ids import TurnId
from shared.wire.messages import SamplingParams

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
_PARAMS = TypeAdapter(SamplingParams)
_TOKENS = TypeAdapter(list[int])
_SCORING = TypeAdapter(dict[int, RowScoring])


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A plan, and the token of each row; None where there was none."""

    plan: StepPlan
    tokens: list[int | None]


def write_step(file: BinaryIO, plan: StepPlan, result: StepResult) -> None:
    """Append a step that has run."""
    tokens = [None if sampled is None else sampled.token for sampled in result.sampled]
    file.write(orjson.dumps({"plan": plan, "tokens": tokens}, option=_OPTIONS))


def read_steps(lines: Iterable[bytes]) -> Iterator[RecordedStep]:
    """The steps of a recording, in order.

    Raises:
        InvalidRequest: a line is none of a recording; names it.
    """
    for number, line in enumerate(lines, start=1):
        try:
            fields = orjson.loads(line)
            yield RecordedStep(_plan(fields["plan"]), fields["tokens"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidRequest(f"line {number} holds no step: {reason}") from None


def _plan(fields: dict[str, Any]) -> StepPlan:
    entries = fields["entries"]
    num_entries = len(entries["slots"])
    return StepPlan(
        turn_ids=[TurnId(name) for name in fields["turn_ids"]],
        slots=_ints(fields["slots"]),
        tokens=_ints(fields["tokens"]),
        following=_ints(fields["following"]),
        carried=_ints(fields["carried"]),
        query_starts=_ints(fields["query_starts"]),
        context_lens=_ints(fields["context_lens"]),
        long=_ints(fields.get("long", [])),
        sampling=[None if row is None else _sampling(row) for row in fields["sampling"]],
        scoring=_SCORING.validate_python(fields["scoring"]),
        awaited={int(row): pages for row, pages in fields["awaited"].items()},
        entries=TableEntries(
            _ints(entries["slots"]),
            _ints(entries["blocks"]),
            _ints(entries["pages"]).reshape(num_entries, -1) if num_entries else _NO_PAGES,
        ),
        adapters=_ints(fields["adapters"]),
        images=[_image(image) for image in fields["images"]],
        streams={int(line): pages for line, pages in fields["streams"].items()},
        assists={int(line): ImageSource(**source) for line, source in fields["assists"].items()},
    )


def _sampling(fields: dict[str, Any]) -> RowSampling:
    params = _PARAMS.validate_python(fields["params"])
    tokens = [_TOKENS.validate_python(fields[name]) for name in ("prompt", "generated")]
    return RowSampling(params, int(fields["num_generated"]), *tokens)


def _image(fields: dict[str, Any]) -> ImageEntry:
    ranks = {str(name): int(rank) for name, rank in fields["ranks"].items()}
    pages = _ints(fields["pages"])
    return ImageEntry(int(fields["line"]), str(fields["adapter_hash"]), ranks, pages)


def _ints(values: list[Any]) -> Ints:
    return np.array(values, np.int32)


_NO_PAGES: Ints = np.empty((0, 0), np.int32)
