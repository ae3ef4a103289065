"""Prompts as blocks with equal prefixes, by time: real traces, scripted users, and what is made up
to be hard for one order or another."""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from random import Random
from typing import NamedTuple

from loadtest.workloads import mooncake
from loadtest.workloads.mooncake import ANSWER_MS_A_TOKEN, BLOCK_TOKENS
from loadtest.workloads.registry import WORKLOADS, why_absent
from loadtest.workloads.script import Script
from loadtest.workloads.traces import path_of

USERS, DURATION_NS = 100, 3_600_000_000_000
SECOND_NS = 1_000_000_000
SESSION_BLOCKS = 20  # of made-up prompts


class Ask(NamedTuple):
    """A prompt, as the ids of its blocks."""

    at_ns: int
    blocks: tuple[int, ...]


def trace(name: str) -> list[Ask]:
    """By time."""
    return list(TRACES[name]())


def why_no_trace(name: str) -> str:
    """Which files of a trace are not there; empty: all are."""
    if (file := FILE_OF.get(name)) is not None:
        return "" if path_of(file).is_file() else f"not in ../shared/traces: {file}"
    return why_absent(name) if name in WORKLOADS else ""


def _requests(file: str) -> Iterator[Ask]:
    # Requests of the trace's one instant (of 3 s) come one after the other.
    for number, request in enumerate(mooncake.load_requests(file)):
        yield Ask(request.at_ns + number, request.blocks)


def of_scripts(scripts: Iterable[Script]) -> Iterator[Ask]:
    """Their prompts, if answers come at one pace, each turn after the one before it."""
    ids: dict[tuple[object, ...], int] = {}
    return merge(*(_asks(script, ids) for script in scripts))


def _asks(script: Script, ids: dict[tuple[object, ...], int]) -> Iterator[Ask]:
    said: dict[str, _Said] = {}
    now_ns = script.begins_ns
    for number, turn in enumerate(script.turns):
        history = said.setdefault(turn.session, _Said(ids))
        for part in turn.parts:
            history.add(part.name, part.num_tokens)
        now_ns += turn.wait_ns
        yield Ask(now_ns, tuple(history.blocks))
        history.add(f"{script.name}/{number}/answer", turn.num_output)
        now_ns += round(turn.num_output * ANSWER_MS_A_TOKEN * 1e6)


class _Said:
    """A session's text so far, cut into blocks: an equal id is an equal prefix."""

    def __init__(self, ids: dict[tuple[object, ...], int]) -> None:
        self.blocks: list[int] = []
        self._ids = ids
        self._open: list[tuple[str, int, int]] = []
        self._num_open = 0

    def add(self, name: str, num_tokens: int) -> None:
        begin = 0
        while begin < num_tokens:
            num = min(BLOCK_TOKENS - self._num_open, num_tokens - begin)
            self._open.append((name, begin, num))
            self._num_open += num
            begin += num
            if self._num_open == BLOCK_TOKENS:
                before = self.blocks[-1] if self.blocks else -1
                key = (before, *self._open)
                self.blocks.append(self._ids.setdefault(key, len(self._ids)))
                self._open, self._num_open = [], 0


def _session(number: int) -> tuple[int, ...]:
    return tuple(range(number * SESSION_BLOCKS, (number + 1) * SESSION_BLOCKS))


def _cycle() -> Iterator[Ask]:
    """1.2 times what 0.5 TB hold, again and again: LRU finds nothing."""
    for number in range(12 * 447):
        yield Ask(number * SECOND_NS, _session(number % 447))


def _zipf(share_of_scans: float, num_phases: int) -> Callable[[], Iterator[Ask]]:
    """Of 2,000 sessions few are popular, others in each phase; a share of all comes once."""

    def asks() -> Iterator[Ask]:
        random, sessions, at_ns, num_once = Random(1), list(range(2000)), 0, 0
        weights = [1 / (rank + 1) for rank in sessions]
        for _ in range(num_phases):
            random.shuffle(sessions)
            for session in random.choices(sessions, weights, k=12_000 // num_phases):
                at_ns += 1 + round(random.expovariate(1.0) * SECOND_NS)
                is_scan = random.random() < share_of_scans
                num_once += is_scan
                yield Ask(at_ns, _session(2000 + num_once if is_scan else session))

    return asks


def _shared() -> Iterator[Ask]:
    """Each begins as one of 200 popular or less popular ones do, and ends as no other does."""
    random, at_ns, num_once = Random(2), 0, 200
    weights = [1 / (rank + 1) for rank in range(200)]
    for session in random.choices(range(200), weights, k=12_000):
        at_ns += 1 + round(random.expovariate(1.0) * SECOND_NS)
        num_once += 1
        yield Ask(at_ns, _session(session) + _session(num_once)[: SESSION_BLOCKS // 2])


FILE_OF = {"mooncake": mooncake.FILE, "arxiv": mooncake.OLDER_FILE}
TRACES: dict[str, Callable[[], Iterable[Ask]]] = {
    "mooncake": lambda: _requests(mooncake.FILE),
    "arxiv": lambda: _requests(mooncake.OLDER_FILE),
    "lmcache-agents": lambda: of_scripts(WORKLOADS["lmcache-agents"](USERS, DURATION_NS, 1)),
    "cycle": _cycle,
    "zipf": _zipf(0.0, 1),
    "scans": _zipf(0.5, 1),
    "shifts": _zipf(0.0, 8),
    "shared-prompts": _shared,
}
