"""Which prompts to pull from which frontend, and for whom an answer still counts.

The turns that start within one pass of the event loop are pulled together, a frontend's in as few
requests as fit its answers.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace

from shared.ids import FrontendId, SessionId, TenantId, TurnId
from shared.messages import Prompt, PromptReply, TurnRef, TurnStart

TOKENS_MAX = 65_536  # of prompts in one reply, so that it stays well below the server's limit
TURNS_MAX = 64


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

    def __len__(self) -> int:
        return len(self._pulling)

    def is_pulling(self, turn_id: TurnId) -> bool:
        """Whether an attempt at this turn waits for its prompt."""
        return turn_id in self._pulling

    def refs(self) -> list[TurnRef]:
        """Attempts whose prompt is on its way."""
        return [TurnRef(turn_id=s.turn_id, attempt=s.attempt) for s in self._pulling.values()]

    def on_start(self, start: TurnStart) -> bool:
        """A turn starts; whether it is the first since `take_pulls`, which is then to be called
        soon.
        """
        is_first = not self._new
        self._pulling[start.turn_id] = start
        self._new[start.frontend_id].append(start)
        return is_first

    def on_cancel(self, turn_id: TurnId, attempt: int) -> None:
        """Forget a turn whose prompt has not come, unless it is of a later attempt (0: any)."""
        start = self._pulling.get(turn_id)
        if start is not None and not (attempt and start.attempt > attempt):
            self._drop(turn_id)

    def on_forget(self, tenant: TenantId, session_id: SessionId) -> None:
        """A session was deleted: its prompts that are on their way are private, unsaid."""
        for start in self._pulling.values():
            if (start.tenant, start.session_id) == (tenant, session_id):
                self._private.add(start.turn_id)

    def take_pulls(self) -> list[Pull]:
        """What to ask for everything that started since the last call."""
        new, self._new = self._new, defaultdict(list)
        return [
            Pull(frontend_id, group)
            for frontend_id, starts in new.items()
            for group in _groups(starts)
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
        told = [given.get((start.turn_id, start.attempt)) for start in pull.starts]
        is_empty = not any(told)
        come = []
        for start, prompt in zip(pull.starts, told, strict=True):
            if self._is_wanted(start) and (prompt is not None or is_empty):
                is_private = self._drop(start.turn_id)
                come.append((start, _as_private(prompt) if is_private else prompt))
        return come

    def again(self, pull: Pull) -> Pull | None:
        """What to ask for next, after `on_reply`; None: everything was told."""
        starts = [start for start in pull.starts if self._is_wanted(start)]
        return Pull(pull.frontend_id, starts) if starts else None

    def _is_wanted(self, start: TurnStart) -> bool:
        """It was not cancelled, nor replaced by a later attempt."""
        return self._pulling.get(start.turn_id) is start

    def _drop(self, turn_id: TurnId) -> bool:
        """Its prompt is not awaited any more; whether its session was deleted meanwhile."""
        del self._pulling[turn_id]
        is_private = turn_id in self._private
        self._private.discard(turn_id)
        return is_private


def _as_private(prompt: Prompt | None) -> Prompt | None:
    return None if prompt is None else replace(prompt, is_private=True)


def _groups(starts: list[TurnStart]) -> list[list[TurnStart]]:
    groups: list[list[TurnStart]] = [[]]
    num_tokens = 0
    for start in starts:
        num_tokens += start.num_prompt_tokens
        if groups[-1] and (num_tokens > TOKENS_MAX or len(groups[-1]) >= TURNS_MAX):
            groups.append([])
            num_tokens = start.num_prompt_tokens
        groups[-1].append(start)
    return groups
