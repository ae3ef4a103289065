"""What must hold of every run. The checks look at what happened, not at why."""

import numpy as np

from loadtest.simulator.log import DONE, Ints, Record


class Violation(AssertionError):
    """A run broke an invariant. The message names it, the place, and how to run it again."""


def check(record: Record, *, seed: int, is_whole: bool) -> None:
    """Look at a whole run.

    Args:
        is_whole: the run went on to its end, so that every job must have met one.

    Raises:
        Violation: something did not hold.
    """
    context = f"seed {seed}, {record.num_gpus} GPUs, {len(record.models)} models"
    _check_jobs_end_once(record, is_whole, context)
    _check_batches_are_of_one_model(record, context)
    _check_no_overlap(record, context)
    _check_no_batch_was_hopeless(record, context)
    _check_times_as_said(record, context)


def _check_jobs_end_once(record: Record, is_whole: bool, context: str) -> None:
    done = record.refs[record.by_job(record.end) == DONE]
    num_ends = np.bincount(np.concatenate([done, record.drop_refs]), minlength=len(record.arrivals))
    twice = np.flatnonzero(num_ends > 1)
    _demand(twice, "jobs that ended more than once", context)
    if is_whole:
        _demand(np.flatnonzero(num_ends == 0), "jobs that were lost", context)


def _check_batches_are_of_one_model(record: Record, context: str) -> None:
    is_other = record.arrivals.model[record.refs] != record.by_job(record.model)
    _demand(record.refs[is_other], "jobs in another model's batch", context)
    size_max = np.array([model.size_max for model in record.models])
    is_large = (record.size > size_max[record.model]) | (record.size == 0)
    _demand(record.number[is_large], "batches of a size that their model does not have", context)


def _check_no_overlap(record: Record, context: str) -> None:
    ran = record.end_ns > record.start_ns
    gpu, start, end, number = (
        column[ran] for column in (record.gpu, record.start_ns, record.end_ns, record.number)
    )
    order = np.lexsort((start, gpu))
    is_same = gpu[order][1:] == gpu[order][:-1]
    is_early = start[order][1:] < end[order][:-1]
    _demand(number[order][1:][is_same & is_early], "batches that overlap another", context)


def _check_no_batch_was_hopeless(record: Record, context: str) -> None:
    """No batch was sent that by the scheduler's own belief ends after one of its deadlines."""
    if not len(record.refs):
        return
    first = np.concatenate([[0], np.cumsum(record.size)[:-1]])
    due_ns = np.minimum.reduceat(record.deadline_ns[record.refs], first)
    is_late = record.believed_end_ns > due_ns
    _demand(record.number[is_late], "batches that were sent too late for a job in them", context)


def _check_times_as_said(record: Record, context: str) -> None:
    ran = record.end == DONE
    is_off = (record.start_ns != record.believed_start_ns) | (
        record.end_ns != record.believed_end_ns
    )
    _demand(record.number[ran & is_off], "batches that ran at another time than said", context)


def _demand(offenders: Ints, what: str, context: str) -> None:
    if len(offenders):
        raise Violation(f"{len(offenders)} {what}: {offenders[:5].tolist()} ({context})")
