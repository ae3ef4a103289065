"""What a fault did to the streams that met it, and what it may do."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from loadtest.chaos.sse import Stream
from loadtest.fuzz.report import Report

WORKER_GAP_MAX_S = 3.0
MOVED_GAP_MAX_S = 1.0  # of a worker that passes its turns on
SCHEDULER_GAP_MAX_S = 1.0  # with a spare
OTHERS_GAP_MAX_S = 1.5  # beside what the process stood still
TROUBLES_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is done to one process.

    Attributes:
        name: of the process; of worker 0's helper it is ``helper-0``.
        stop_s: how long it stands still; 0: it is killed.
        is_orderly: it is asked to end instead, and may pass on what it has.
    """

    name: str
    stop_s: float = 0.0
    is_orderly: bool = False

    @property
    def what(self) -> str:
        """In words: the same for every round."""
        if self.is_orderly:
            return f"{self.name} asked to end"
        return f"{self.name} {f'stopped {self.stop_s:g} s' if self.stop_s else 'killed'}"

    @property
    def breaks_streams(self) -> bool:
        """Whether streams go through the process that dies."""
        return self.name == "frontend" and not self.stop_s

    @property
    def gap_max_s(self) -> float:
        """How long a stream may wait for its next piece."""
        match self.name.partition("-")[0]:
            case "worker":
                return MOVED_GAP_MAX_S if self.is_orderly else WORKER_GAP_MAX_S
            case "scheduler":
                return SCHEDULER_GAP_MAX_S
            case "helper":  # however long it stands still: it is given up in a moment
                return OTHERS_GAP_MAX_S
        return self.stop_s + OTHERS_GAP_MAX_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Toll:
    """What streams met between two instants.

    Attributes:
        num_exact: streams that came to their end, token for token as on a good day.
        num_ties: that went another way where two tokens were equally likely, by rounding.
        num_wrong: that were other than expected; also if they broke later.
        num_broken: that did not come to their end.
        num_refused: requests that were not taken.
        gap_s: the longest between two pieces of a stream that came to its end.
        first_piece_s: the longest that a new stream waited for its first.
        troubles: errors of broken and refused ones, each once, some of them.
    """

    num_exact: int
    num_ties: int
    num_wrong: int
    num_broken: int
    num_refused: int
    gap_s: float
    first_piece_s: float
    troubles: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """What machines read."""
        return asdict(self)


def met_by(ended: Iterable[Stream], begun_at: float, over_at: float) -> list[Stream]:
    """Streams that were open at some time between two instants, of those that ended."""
    return [stream for stream in ended if stream.ended_at > begun_at and stream.sent_at < over_at]


def has_strayed(stream: Stream, expected: list[int]) -> bool:
    """Whether it is other than expected; a broken one as far as it came."""
    return stream.tokens != (expected[: len(stream.tokens)] if stream.trouble else expected)


def take_toll(
    met: Sequence[Stream],
    expected_of: Callable[[Stream], list[int]],
    begun_at: float,
    over_at: float,
) -> Toll:
    """Count streams that were open at some time between two instants."""
    whole = [stream for stream in met if not stream.trouble]
    broken = [stream for stream in met if stream.trouble and not stream.was_refused]
    strayed = [stream for stream in met if has_strayed(stream, expected_of(stream))]
    num_ties = sum(stream.is_tie for stream in strayed)
    gaps = [
        later - earlier
        for stream in whole
        for earlier, later in pairwise(stream.pieces_at)
        if later > begun_at and earlier < over_at
    ]
    firsts = [s.pieces_at[0] - s.sent_at for s in whole if s.pieces_at and s.sent_at >= begun_at]
    return Toll(
        num_exact=sum(stream not in strayed for stream in whole),
        num_ties=num_ties,
        num_wrong=len(strayed) - num_ties,
        num_broken=len(broken),
        num_refused=sum(stream.was_refused for stream in met),
        gap_s=round(max(gaps, default=0.0), 3),
        first_piece_s=round(max(firsts, default=0.0), 3),
        troubles=tuple(sorted({stream.trouble for stream in met if stream.trouble})[:TROUBLES_MAX]),
    )


def judge(report: Report, fault: Fault, toll: Toll, load_s: float = 0.0) -> None:
    """Count, and say what should not have been.

    Args:
        load_s: that streams may wait for their adapters, beside what a fault may cost.
    """
    what, gap_max_s = fault.what, fault.gap_max_s + load_s
    report.count("faults")
    report.count("exact", toll.num_exact)
    report.count("ties", toll.num_ties)
    report.count("wrong", toll.num_wrong)
    report.see(f"{what}: gap_s", toll.gap_s)
    report.expect(toll.num_exact > 0, f"{what}: no stream came to its end")
    report.expect(not toll.num_wrong, f"{what}: {toll.num_wrong} streams were not as expected")
    report.expect(
        toll.gap_s <= gap_max_s,
        f"{what}: a stream waited {toll.gap_s:g} s, not at most {gap_max_s:g} s",
    )
    if fault.breaks_streams:
        report.count("broken with the frontend", toll.num_broken)
        return
    report.count("broken", toll.num_broken)
    report.count("refused", toll.num_refused)
    report.expect(not toll.num_broken, f"{what}: {toll.num_broken} streams broke")
    report.expect(not toll.num_refused, f"{what}: {toll.num_refused} requests were refused")
