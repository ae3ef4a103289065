"""Inputs, limits and effects of `core.turns.jobs`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shared.effects import WakeAt
from shared.ids import ModelId
from shared.wire.messages import InputReply, JobDropped, JobInput, JobsCancel, JobsSubmit

INPUT_FIELDS_BYTES = 160  # names and numbers of one input on the wire

Outcome = Literal["dropped", "failed", "unanswered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Attributes:
    gather_ns: how long a job waits for others to be submitted with.
    silent_min_ns: jobs without an event are submitted again after half of the time that
        is left to their deadline, but not sooner than this.
    grace_ns: how long after its deadline a request still waits for its results.
    reply_bytes_max: of one answer to a pull, unless a single input is larger.
    missed_ns: how long after an input missed its batch its job is submitted again: the scheduler
        ignores jobs that have just ended.
    """

    gather_ns: int = 1_000_000
    silent_min_ns: int = 50_000_000
    grace_ns: int = 250_000_000
    reply_bytes_max: int = 900_000
    missed_ns: int = 250_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """One input, and the variant of the model that it takes."""

    variant: int
    input: JobInput

    @property
    def num_bytes(self) -> int:
        """Upper bound of its size on the wire."""
        given = self.input
        size = len(given.job_id) + len(given.tokens) + len(given.segments) + len(given.pixels)
        return size + INPUT_FIELDS_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """Jobs of one HTTP request, ready to run.

    Attributes:
        shard: of the scheduler.
        fastest_ns: run time of the model's smallest batch, for the slowest of these inputs.
    """

    request_id: str
    model_id: ModelId
    fingerprint: str
    shard: int
    jobs: Sequence[NewJob]
    arrived_at_ns: int
    deadline_at_ns: int
    fastest_ns: int


@dataclass(frozen=True, slots=True)
class Submit:
    """Publish to a shard of the scheduler."""

    shard: int
    message: JobsSubmit


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel jobs at a shard."""

    shard: int
    message: JobsCancel


@dataclass(frozen=True, slots=True)
class AnswerPull:
    """Reply to the worker that pulled."""

    message: InputReply


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Every job has its result: `values` as on the wire, in the order of the jobs."""

    request_id: str
    values: list[str]
    took_ns: int
    is_late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The request ends without an answer; `why` is of the first job that failed."""

    request_id: str
    num_jobs: int
    outcome: Outcome
    why: JobDropped


Effect = Submit | Cancel | AnswerPull | Done | Fail | WakeAt
