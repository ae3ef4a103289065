"""Which prompts came with their starts, which to pull from which frontend, and for whom an answer
still counts.

The turns that start within one pass of the event loop are pulled together, a frontend's in as few
requests as fit its answers.

A prompt that came with its start was written when the turn was submitted. If the turn's session was
deleted since, its frontend knows, and is asked.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from shared.errors import MalformedMessage
from shared.groups import in_groups
from shared.ids import FrontendId, SessionId, TenantId, TurnId
from shared.wire.messages import Prompt, PromptReply, TurnRef, TurnStart, decode

TOKENS_MAX = 65_536  # of prompts in one reply, so that it stays well below the server's limit
TURNS_MAX = 64
DELETED_NS = 600_000_000_000  # longer than any start can be in flight
DELETED_MAX = 4096


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask this frontend for the prompts of these starts; answer with `Pulling.on_reply`."""

    frontend_id: FrontendId
    starts: list[TurnStart]

    @property
    def refs(self) -> list[TurnRef]:
        """As the frontend is asked."""
        return [TurnRef(turn_id=s.turn_id, attempt=s.attempt) for s in self.starts]


@dataclass(slots=True)
class Pulling:
    """Starts of which the prompt has not come yet."""

    _new: dict[FrontendId, list[TurnStart]] = field(default_factory=lambda: defaultdict(list))
    _pulling: dict[TurnId, TurnStart] = field(default_factory=dict)
    _private: set[TurnId] = field(default_factory=set)  # of those
    # Sessions deleted lately, with when that does not matter any more, the oldest first; and when
    # it does not for those that found no room here.
    _deleted: dict[tuple[TenantId, SessionId], int] = field(default_factory=dict)
    _all_deleted_until_ns: int = 0

    def __len__(self) -> int:
        return len(self._pulling)

    def is_pulling(self, turn_id: TurnId) -> bool:
        """Whether an attempt at this turn waits for its prompt."""
        return turn_id in self._pulling

    def refs(self) -> list[TurnRef]:
        """Attempts whose prompt is in flight."""
        return [TurnRef(turn_id=s.turn_id, attempt=s.attempt) for s in self._pulling.values()]

    def on_start(self, start: TurnStart, now_ns: int) -> Prompt | None:
        """A turn starts: its prompt; None if it is to be pulled, so that `take_pulls` is to be
        called soon.
        """
        prompt = _prompt_in(start)
        if prompt is not None and not self._may_be_deleted(start, now_ns):
            if start.turn_id in self._pulling:  # an earlier attempt
                self._drop(start.turn_id)
            return prompt
        self._pulling[start.turn_id] = start
        self._new[start.frontend_id].append(start)
        return None

    def on_cancel(self, turn_id: TurnId, attempt: int) -> None:
        """Forget a turn whose prompt has not come, unless it is of a later attempt (0: any)."""
        start = self._pulling.get(turn_id)
        if start is not None and not (attempt and start.attempt > attempt):
            self._drop(turn_id)

    def on_forget(self, tenant: TenantId, session_id: SessionId, now_ns: int) -> None:
        """A session was deleted: its prompts in flight are private, though they do not say so."""
        deleted, key = self._deleted, (tenant, session_id)
        deleted.pop(key, None)
        deleted[key] = now_ns + DELETED_NS
        while len(deleted) > DELETED_MAX or deleted[next(iter(deleted))] <= now_ns:
            self._all_deleted_until_ns = deleted.pop(next(iter(deleted)))
        for start in self._pulling.values():
            if (start.tenant, start.session_id) == (tenant, session_id):
                self._private.add(start.turn_id)

    def take_pulls(self) -> list[Pull]:
        """What to ask for everything that started since the last call."""
        new, self._new = self._new, defaultdict(list)
        return [
            Pull(frontend_id, group)
            for frontend_id, starts in new.items()
            for group in in_groups(starts, lambda s: s.num_prompt_tokens, TOKENS_MAX, TURNS_MAX)
        ]

    def on_reply(
        self, pull: Pull, reply: PromptReply | None
    ) -> list[tuple[TurnStart, Prompt | None]]:
        """The frontend answered, or (None) did not: the starts that still count, each with its
        prompt; None where there is none. An answer holds as many prompts as fit: what it left out
        is pulled `again`, unless it holds none, when asking again would not help.
        """
        given = (
            {}
            if reply is None
            else {(prompt.turn_id, prompt.attempt): prompt for prompt in reply.prompts}
        )
        prompts = [given.get((start.turn_id, start.attempt)) for start in pull.starts]
        is_empty = not any(prompts)
        come = []
        for start, prompt in zip(pull.starts, prompts, strict=True):
            if self._is_wanted(start) and (prompt is not None or is_empty):
                is_private = self._drop(start.turn_id)
                come.append((start, _as_private(prompt) if is_private else prompt))
        return come

    def again(self, pull: Pull) -> Pull | None:
        """What to ask for next, after `on_reply`; None: everything was answered."""
        starts = [start for start in pull.starts if self._is_wanted(start)]
        return Pull(pull.frontend_id, starts) if starts else None

    def _may_be_deleted(self, start: TurnStart, now_ns: int) -> bool:
        """Whether the turn's session may have been deleted since it was submitted."""
        if start.session_id is None:
            return False
        until_ns = self._deleted.get((start.tenant, start.session_id), self._all_deleted_until_ns)
        return now_ns < until_ns

    def _is_wanted(self, start: TurnStart) -> bool:
        """It was not cancelled, nor replaced by a later attempt."""
        return self._pulling.get(start.turn_id) is start

    def _drop(self, turn_id: TurnId) -> bool:
        """Its prompt is not awaited any more; whether its session was deleted meanwhile."""
        del self._pulling[turn_id]
        is_private = turn_id in self._private
        self._private.discard(turn_id)
        return is_private


def _prompt_in(start: TurnStart) -> Prompt | None:
    """The prompt that came along, if it can be read: who wrote it can be asked."""
    if not start.prompt:
        return None
    try:
        prompt = decode(Prompt, start.prompt.encode())
    except MalformedMessage:
        return None
    return None if prompt.gone or prompt.turn_id != start.turn_id else prompt


def _as_private(prompt: Prompt | None) -> Prompt | None:
    return None if prompt is None else replace(prompt, is_private=True)
