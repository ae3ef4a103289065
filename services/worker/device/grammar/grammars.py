"""Walks grammars along turns' tokens, in threads of its own beside the forward pass.

The turn's tokens that a step gets decide the mask, and nothing else: a turn that was preempted
or comes from another worker is held to its grammar from where it stands. Where a turn stands is
remembered, so that a step's token is one step of its grammar.

Masks are quick, and more threads than one would only be in the way of the pass. But a stranger's
grammar may take long over a token: a third of a second, by its limits (`shared.wire.grammar`). Who
waits for a step does not wait for that: the row is late, and tried again; so are those behind it,
which then go another way. What was slow before has threads of its own, and is not waited for.
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from typing import TypeAlias

import numpy as np
from llguidance import LLMatcher

from services.worker.core.step import RowSampling, StepPlan
from services.worker.device.grammar.json_keys import KeyTracker
from services.worker.device.grammar.masks import Mask, Masks, Words
from services.worker.device.grammar.unique_keys import UniqueKeys
from services.worker.device.grammar.vocabulary import Vocabulary
from shared.ids import TurnId
from shared.runtime.deep_threads import DeepThreads
from shared.wire.grammar import compiled, matcher_of, reason_of

SLOW_THREADS = 2
SLOW_S = 0.01  # of one mask
PREPARED_MAX = 64  # grammars that are kept compiled
WALKS_MAX = 512  # turns of which it is known where they stand
NO_WORDS: Words = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Asked:
    """A row of a step that is held to a grammar.

    Attributes:
        generated: all tokens that its turn has generated.
        json_after: as `SamplingParams.json_after`.
    """

    row: int
    turn_id: TurnId
    grammar: str
    generated: list[int]
    json_after: Sequence[str] = ()


def asked_of(plan: StepPlan, rows: Iterable[tuple[int, RowSampling]]) -> Iterator[Asked]:
    """Of a plan's rows, with all their tokens, those that are held to a grammar."""
    for row, sampling in rows:
        params = sampling.params
        if params.grammar:
            turn_id = plan.turn_ids[row]
            yield Asked(row, turn_id, params.grammar, sampling.generated, params.json_after)


@dataclass(slots=True)
class _Walk:
    """Where a turn stands in its grammar. One thread at a time works on it.

    Attributes:
        matcher: None: not made yet.
        tokens: that it has taken, but for those behind the grammar's end.
        keys: where it is in its JSON; None: nowhere, or it was not asked for yet.
        is_slow: its last mask took long.
        asked, last: what the last mask was asked for, and it.
    """

    matcher: LLMatcher | None = None
    tokens: list[int] = field(default_factory=list)
    keys: KeyTracker | None = None
    lock: Lock = field(default_factory=Lock)
    is_slow: bool = False
    asked: list[int] | None = None
    last: "Future[Mask] | None" = None


_Job: TypeAlias = "tuple[_Walk, Asked, Future[Mask]]"


class Grammars:
    """Args:
    vocabulary: of the model whose turns are held to grammars.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lane = DeepThreads(1, "grammar")  # no thread before it is used
        self._slow = DeepThreads(SLOW_THREADS, "grammar-slow")
        self._preparing = DeepThreads(SLOW_THREADS, "grammar-new")
        self._lane_since_s = inf  # when what the lane is at now began
        self._lock, self._keys_lock = Lock(), Lock()
        self._prepared: OrderedDict[str, LLMatcher] = OrderedDict()
        self._walks: OrderedDict[TurnId, _Walk] = OrderedDict()
        self._unique_keys: UniqueKeys | None = None  # made when a grammar needs it

    def prepare(self, grammar: str, *, has_open_keys: bool = False) -> "Future[str]":
        """See that a grammar can be used, in a thread: why it cannot be; empty if it can.

        Args:
            has_open_keys: keys in it are to be kept from repeating.
        """
        with self._lock:
            is_ready = not has_open_keys or self._unique_keys is not None
            if grammar in self._prepared and is_ready:
                self._prepared.move_to_end(grammar)
                known: Future[str] = Future()
                known.set_result("")
                return known
        return self._preparing.submit(self._prepare, grammar, has_open_keys)

    def begin(self, asked: Iterable[Asked]) -> Masks:
        """Begin to find which tokens may come next."""
        masks, jobs = Masks(), list[_Job]()
        for each in asked:
            walk = self._walk(each.turn_id)
            if walk.last is None or walk.last.cancelled() or walk.asked != each.generated:
                walk.asked, walk.last = each.generated, Future()
                jobs.append((walk, each, walk.last))
            masks.coming[each.row] = walk.last
            if walk.is_slow:
                masks.slow.add(each.row)
        is_stuck = time.monotonic() > self._lane_since_s + SLOW_S
        for job in jobs:
            if job[0].is_slow or is_stuck:
                self._slow.submit(self._run, [job])
        quick = [] if is_stuck else [job for job in jobs if not job[0].is_slow]
        if quick:  # newcomers last: how long they take is unknown
            quick.sort(key=lambda job: len(job[1].generated), reverse=True)
            self._lane.submit(self._run, quick, is_lane=True)
        return masks

    def close(self) -> None:
        """Free its threads; what they are at comes to nothing."""
        for threads in (self._lane, self._slow, self._preparing):
            threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, grammar: str, has_open_keys: bool) -> str:
        try:
            tokenizer = self._vocabulary.tokenizer()
            if has_open_keys:
                self._tokens_of_keys()
        except Exception as error:  # any library's
            return f"this model's tokenizer cannot be held to a grammar: {error}"
        matcher, flaw = compiled(grammar, tokenizer)
        if matcher is not None:
            self._keep(grammar, matcher)
        return flaw

    def _keep(self, grammar: str, matcher: LLMatcher) -> None:
        with self._lock:
            self._prepared[grammar] = matcher
            if len(self._prepared) > PREPARED_MAX:
                self._prepared.popitem(last=False)

    def _walk(self, turn_id: TurnId) -> _Walk:
        walk = self._walks.get(turn_id)
        if walk is None:
            walk = self._walks[turn_id] = _Walk()
            if len(self._walks) > WALKS_MAX:
                self._walks.popitem(last=False)
        self._walks.move_to_end(turn_id)
        return walk

    def _run(self, jobs: list[_Job], *, is_lane: bool = False) -> None:
        """One after the other, in a thread."""
        for walk, asked, future in jobs:
            if not future.set_running_or_notify_cancel():
                continue  # it came too late, and is another's job now
            began_s = time.monotonic()
            if is_lane:
                self._lane_since_s = began_s
            try:
                mask = self._mask(walk, asked)
            except BaseException as error:
                future.set_exception(error)
            else:
                walk.is_slow = time.monotonic() > began_s + SLOW_S
                future.set_result(mask)
        if is_lane:
            self._lane_since_s = inf

    def _matcher(self, grammar: str) -> LLMatcher:
        with self._lock:
            if (matcher := self._prepared.get(grammar)) is not None:
                self._prepared.move_to_end(grammar)
        if matcher is None:  # of too many it was let go
            matcher = matcher_of(grammar, self._vocabulary.tokenizer())
            self._keep(grammar, matcher)
        with self._lock:
            return matcher.deep_copy()

    def _mask(self, walk: _Walk, asked: Asked) -> Mask:
        """In a thread."""
        with walk.lock:
            if walk.matcher is None:
                walk.matcher = self._matcher(asked.grammar)
            num_kept = _follow(walk.matcher, walk.tokens, asked.generated)
            words = NO_WORDS
            if not (why := reason_of(walk.matcher)):
                words = np.frombuffer(walk.matcher.compute_bitmask(), np.int32)
                why = reason_of(walk.matcher)
            if not why and asked.json_after:
                words = self._without_repeated(walk, walk.matcher, num_kept, asked, words)
            if not why and not words.any():
                why = "nothing can be said within it any more"
            return Mask(words, why)

    def _tokens_of_keys(self) -> UniqueKeys:
        with self._keys_lock:
            if self._unique_keys is None:
                self._unique_keys = UniqueKeys(self._vocabulary.tokenizer())
            return self._unique_keys

    def _without_repeated(
        self, walk: _Walk, matcher: LLMatcher, num_kept: int, asked: Asked, words: Words
    ) -> Words:
        """A mask without what would repeat a key.

        Args:
            num_kept: tokens that the walk had taken before.
        """
        unique = self._tokens_of_keys()
        if walk.keys is None or not num_kept:
            walk.keys, num_kept = KeyTracker([each.encode() for each in asked.json_after]), 0
        for token in walk.tokens[num_kept:]:
            unique.feed(walk.keys, token)
        return unique.filtered(walk.keys, matcher, words)


def _follow(matcher: LLMatcher, known: list[int], generated: list[int]) -> int:
    """Bring a matcher that has taken the `known` tokens to where its turn stands; how many of them
    it keeps."""
    if known != generated[: len(known)]:  # it goes on from somewhere else
        matcher.reset()
        known.clear()
    num_kept = len(known)
    for token in generated[len(known) :]:
        if matcher.is_stopped() and not matcher.is_error():
            break  # what follows its end is more ends
        if not matcher.consume_token(token):
            break
        known.append(token)
    return num_kept
